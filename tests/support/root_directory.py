"""The base image of the tests as a directory, unpacked once per machine."""

import fcntl
import os
from pathlib import Path

from support.base_image import base_tar
from waypoint.kernel.processes.programs import run_tool

__all__ = ["base_directory"]


def base_directory() -> Path:
    """Return a root file system, which no test may change."""
    tar = base_tar()
    made = tar.with_suffix(".root")
    with open(tar.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            draft = tar.with_suffix(f".{os.getpid()}")
            draft.mkdir()
            run_tool(("tar", "-C", os.fspath(draft), "-xf", os.fspath(tar)), timeout_s=300)
            draft.rename(made)
    return made
