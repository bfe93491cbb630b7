"""System calls that Python does not offer, each as a function that raises OSError naming its object.

Nothing else in the project imports ctypes (the host probe apart).
"""

import ctypes
import os
from pathlib import Path

__all__ = [
    "AT_FDCWD",
    "MNT_DETACH",
    "MS_BIND",
    "MS_NOATIME",
    "MS_NODEV",
    "MS_NOSUID",
    "mount",
    "open_in_root",
    "syncfs",
    "unmount",
]

MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MS_BIND = 4096
MNT_DETACH = 2

AT_FDCWD = -100
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10
SYS_OPENAT2 = 437  # the same number on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


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


def open_in_root(root_fd: int, path: str, flags: int) -> int:
    """Open ``path`` as if ``root_fd`` were ``/``: no link inside can lead out of it."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    fd: int = _libc.syscall(SYS_OPENAT2, root_fd, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    _check(fd, path)
    return fd


def _check(result: int, path: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
