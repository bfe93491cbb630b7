"""System calls that Python does not offer, each as a function that raises OSError naming its object.

Nothing else in the project imports ctypes, apart from the host probe and the binding of libvterm,
:mod:`waypoint.shell.vterm`.
"""

import ctypes
import os
import struct
from pathlib import Path

__all__ = [
    "MNT_DETACH",
    "MS_NOATIME",
    "MS_NODEV",
    "MS_NOSUID",
    "RENAME_EXCHANGE",
    "RESOLVE_IN_ROOT",
    "RESOLVE_NO_MAGICLINKS",
    "duplicate_descriptor",
    "file_system_type",
    "mount",
    "openat2",
    "rename_at",
    "sync_file_system",
    "unmount",
]

MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MNT_DETACH = 2
RENAME_EXCHANGE = 2
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10
_SYS_OPENAT2 = 437  # the same on every architecture
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


def openat2(dir_fd: int, path: str, flags: int, resolve: int) -> int:
    """openat2(2), for an existing file; the descriptor is close-on-exec."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)
    fd: int = _libc.syscall(_SYS_OPENAT2, dir_fd, _c_string(path), how, ctypes.c_size_t(len(how)))
    _check(fd, path)
    return fd


def rename_at(from_fd: int, source: str, to_fd: int, target: str, flags: int) -> None:
    """renameat2(2)."""
    _check(_libc.renameat2(from_fd, _c_string(source), to_fd, _c_string(target), flags), target)


def file_system_type(fd: int) -> int:
    """fstatfs(2): the magic number of the file system that holds an open file."""
    answer = ctypes.create_string_buffer(512)  # more than the structure is anywhere
    _check(_libc.fstatfs(fd, answer), f"descriptor {fd}")
    number: int = ctypes.c_ulong.from_buffer(answer).value
    return number


def _c_string(path: str) -> bytes:
    """As the functions of ``os`` do; ctypes would let the path end at the null."""
    if "\0" in path:
        raise ValueError("embedded null byte")
    return os.fsencode(path)


def _check(result: int, path: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
