"""A root file system with only busybox and its libraries: quick to copy, and its shell is ash."""

import os
import shutil
from pathlib import Path

from waypoint.kernel.processes.programs import run_tool

__all__ = ["make_tiny_root"]


def make_tiny_root(root: Path) -> Path:
    """Fill the new directory ``root``; each applet is a link with its own name."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "apt-get install busybox"
    libraries = [
        word
        for word in run_tool(("ldd", busybox), timeout_s=20, accept=(0, 1)).stdout.split()
        if word.startswith("/")
    ]
    for path in libraries:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)
    (root / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox, root / "bin/busybox")
    for applet in run_tool((busybox, "--list"), timeout_s=20).stdout.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    return root
