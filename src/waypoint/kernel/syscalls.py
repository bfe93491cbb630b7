"""System calls that Python does not offer, each as a function that raises OSError naming its object.

Nothing else in the project imports ctypes (the host probe apart).
"""

import ctypes
import os
from pathlib import Path

__all__ = [
    "MNT_DETACH",
    "MS_NOATIME",
    "MS_NODEV",
    "MS_NOSUID",
    "duplicate_descriptor",
    "mount",
    "sync_file_system",
    "unmount",
]

MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MNT_DETACH = 2
_SYS_PIDFD_GETFD = 438  # the same on every architecture

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


def sync_file_system(path: Path) -> None:
    """syncfs(2): write out the file system that holds the directory ``path``."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(_libc.syncfs(fd), os.fspath(path))
    finally:
        os.close(fd)


def duplicate_descriptor(pidfd: int, number: int) -> int:
    """pidfd_getfd(2): our own duplicate of another process's descriptor."""
    fd: int = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    _check(fd, f"descriptor {number}")
    return fd


def _check(result: int, path: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
