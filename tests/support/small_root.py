"""A root file system of a few megabytes: busybox and the libraries it needs."""

import shutil
import subprocess
from pathlib import Path

__all__ = ["make_small_root"]


def make_small_root(root: Path) -> Path:
    """Make it in ``root``; every program of busybox is a link in /bin."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "busybox is not installed"
    for name in ("bin", "etc", "root", "tmp", "lib", "lib64"):
        (root / name).mkdir(parents=True)
    shutil.copy2(busybox, root / "bin/busybox")
    listed = subprocess.run(["ldd", busybox], capture_output=True, text=True, check=False).stdout
    for word in listed.split():
        if word.startswith("/"):
            place = root / word.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(word, place)
    programs = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for program in programs:
        if program != "busybox":
            (root / "bin" / program).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\napp:x:1000:\nstaff:x:50:\n")
    return root
