"""System calls that Python does not offer, each as a function that raises OSError naming its object.

Nothing else in the project imports ctypes, apart from the host probe and the binding of libvterm,
:mod:`waypoint.shell.vterm`.
"""

import ctypes
import os
import struct
from pathlib import Path

__all__ = [
    "CLONE_NEWNET",
    "MNT_DETACH",
    "MOUNT_ATTR_NODEV",
    "MOUNT_ATTR_NOEXEC",
    "MOUNT_ATTR_NOSUID",
    "MOUNT_ATTR_RDONLY",
    "MS_NOATIME",
    "MS_NODEV",
    "MS_NOSUID",
    "RENAME_EXCHANGE",
    "RESOLVE_IN_ROOT",
    "RESOLVE_NO_MAGICLINKS",
    "RESOLVE_NO_SYMLINKS",
    "RESOLVE_NO_XDEV",
    "add_watch",
    "address_of",
    "bpf",
    "buffer_of",
    "clone_mount",
    "duplicate_descriptor",
    "file_system_type",
    "mount",
    "move_mount",
    "openat2",
    "remove_watch",
    "rename_at",
    "set_mount_attributes",
    "set_namespace",
    "sync_file_system",
    "unmount",
    "unshare",
]

MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8
RENAME_EXCHANGE = 2
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10
CLONE_NEWNET = 0x40000000
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_EMPTY_PATHS = 0x04 | 0x40  # both the mount and the target are given by descriptor alone
# The same on every architecture.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_OPENAT2 = 437
_SYS_PIDFD_GETFD = 438
_SYS_MOUNT_SETATTR = 442

_SYS_BPF = {"x86_64": 321}  # elsewhere as in the kernel's generic table
_SYS_BPF_GENERIC = 280

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


def clone_mount(file_fd: int) -> int:
    """open_tree(2): copy the mount that an open file is on, with that file as its root, and attach it nowhere yet.

    Mounts below it are not copied. If it is still attached nowhere when the descriptor is closed, the kernel drops it.
    """
    flags = _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC
    fd: int = _libc.syscall(_SYS_OPEN_TREE, file_fd, b"", flags)
    _check(fd, f"descriptor {file_fd}")
    return fd


def move_mount(mount_fd: int, target_fd: int) -> None:
    """move_mount(2): attach the mount behind one descriptor to the file or directory behind the other."""
    flags = _MOVE_MOUNT_EMPTY_PATHS
    _check(_libc.syscall(_SYS_MOVE_MOUNT, mount_fd, b"", target_fd, b"", flags), f"descriptor {target_fd}")


def set_mount_attributes(mount_fd: int, attributes: int) -> None:
    """mount_setattr(2): add attributes to a mount and make it private: its copies do not see what is mounted on it."""
    settings = struct.pack("=QQQQ", attributes, 0, MS_PRIVATE, 0)
    size = ctypes.c_size_t(len(settings))
    result = _libc.syscall(_SYS_MOUNT_SETATTR, mount_fd, b"", _AT_EMPTY_PATH, settings, size)
    _check(result, f"descriptor {mount_fd}")


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


def add_watch(inotify: int, path: str, mask: int) -> int:
    """inotify_add_watch(2): return the number of the watch."""
    number: int = _libc.inotify_add_watch(inotify, _c_string(path), ctypes.c_uint32(mask))
    _check(number, path)
    return number


def remove_watch(inotify: int, number: int) -> None:
    """inotify_rm_watch(2)."""
    _check(_libc.inotify_rm_watch(inotify, number), f"watch {number}")


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
    answer = ctypes.create_string_buffer(512)  # larger than the structure on any architecture
    _check(_libc.fstatfs(fd, answer), f"descriptor {fd}")
    number: int = ctypes.c_ulong.from_buffer(answer).value
    return number


def unshare(flags: int) -> None:
    """unshare(2), for the calling thread."""
    _check(_libc.unshare(flags), "a new namespace")


def set_namespace(fd: int, kind: int) -> None:
    """setns(2), for the calling thread."""
    _check(_libc.setns(fd, kind), f"the namespace behind descriptor {fd}")


def buffer_of(content: bytes) -> "ctypes.Array[ctypes.c_char]":
    """Memory to which a structure passed to the kernel can point, as long as the returned object lives."""
    return ctypes.create_string_buffer(content, len(content))


def address_of(buffer: "ctypes.Array[ctypes.c_char]") -> int:
    return ctypes.addressof(buffer)


def bpf(command: int, attributes: bytes, what: str) -> int:
    """bpf(2); ``what`` is named in the error. The caller keeps alive what ``attributes`` point to."""
    number = _SYS_BPF.get(os.uname().machine, _SYS_BPF_GENERIC)
    result: int = _libc.syscall(number, command, attributes, len(attributes))
    _check(result, what)
    return result


def _c_string(path: str) -> bytes:
    """Encode a path. A null byte is refused, as by the functions of ``os``; ctypes would cut the path at it."""
    if "\0" in path:
        raise ValueError("embedded null byte")
    return os.fsencode(path)


def _check(result: int, path: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
