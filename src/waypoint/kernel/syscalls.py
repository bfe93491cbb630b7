"""System calls that Python does not offer, each as a function that raises OSError naming its object.

Nothing else in the project imports ctypes (the host probe apart).
"""

import ctypes
import os
from pathlib import Path

__all__ = [
    "MNT_DETACH",
    "MS_BIND",
    "MS_NOATIME",
    "MS_NODEV",
    "MS_NOSUID",
    "mount",
    "syncfs",
    "unmount",
]

MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MS_BIND = 4096
MNT_DETACH = 2


_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path | str, fstype: str, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    path = os.fspath(target)
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(path),
            fstype.encode(),
            ctypes.c_ulong(flags),
            os.fsencode(data) if data else None,
        ),
        path,
    )


def unmount(target: Path | str, flags: int = 0) -> None:
    """umount2(2)."""
    path = os.fspath(target)
    _check(_libc.umount2(os.fsencode(path), flags), path)


def syncfs(fd: int, path: Path | str) -> None:
    """Write out the file system that holds ``fd``; ``path`` is only for the message."""
    _check(_libc.syncfs(fd), os.fspath(path))


def _check(result: int, path: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
