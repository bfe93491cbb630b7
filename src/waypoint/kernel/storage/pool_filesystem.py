"""Make, recognise and grow the btrfs file system of a pool."""

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import ToolMissing
from waypoint.kernel.processes.programs import run_tool

__all__ = ["Superblock", "btrfs_uuid", "grow_btrfs", "make_btrfs", "make_sparse_file", "read_superblock"]

MKFS_TIMEOUT_S = 120.0

BTRFS_IOC_RESIZE = 0x50009403
BTRFS_IOC_FS_INFO = 0x8400941F
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_SETFLAGS = 0x40086602
FS_NOCOW_FL = 0x00800000

SUPERBLOCK_OFFSET = 64 * 1024
BTRFS_MAGIC = b"_BHRfS_M"


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    """What the first block of a btrfs says about it."""

    uuid: str
    label: str


def make_sparse_file(path: Path, size_bytes: int) -> None:
    """Make an empty file of ``size_bytes`` that takes no space yet, in place of any older one."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _disable_copy_on_write(fd)
        os.ftruncate(fd, size_bytes)
    finally:
        os.close(fd)


def make_btrfs(path: Path, label: str) -> None:
    """Format ``path``, a file or device. One copy of the metadata: below it is a file, not two disks."""
    command = ["mkfs.btrfs", "-q", "-f", "-K", "-L", label, "-m", "single", "-d", "single", os.fspath(path)]
    try:
        run_tool(command, timeout_s=MKFS_TIMEOUT_S)
    except ToolMissing as error:
        raise ToolMissing("mkfs.btrfs", package="btrfs-progs") from error


def read_superblock(path: Path) -> Superblock | None:
    """The identity of the btrfs in a file or device; None if there is none."""
    with path.open("rb") as stream:
        stream.seek(SUPERBLOCK_OFFSET)
        block = stream.read(4096)
    if block[0x40:0x48] != BTRFS_MAGIC:
        return None
    label = block[0x12B:0x22B].split(b"\0", 1)[0].decode(errors="replace")
    return Superblock(uuid=_uuid_text(block[0x20:0x30]), label=label)


def btrfs_uuid(path: Path) -> str | None:
    """The identity of the mounted btrfs that holds ``path``; None if that is not a btrfs.

    Device numbers do not identify it: every subvolume of one btrfs has its own.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        answer = fcntl.ioctl(fd, BTRFS_IOC_FS_INFO, bytes(1024))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    finally:
        os.close(fd)
    return _uuid_text(answer[16:32])


def grow_btrfs(mount_point: Path) -> None:
    """Let the mounted file system use all of its device."""
    fd = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, BTRFS_IOC_RESIZE, bytearray(struct.pack("=q4088s", 0, b"max")))
    finally:
        os.close(fd)


def _disable_copy_on_write(fd: int) -> None:
    """On btrfs a disk image must not be copied on write again; other file systems do not know the flag."""
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(4)))[0]
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("i", flags | FS_NOCOW_FL))
    except OSError:
        return


def _uuid_text(number: bytes) -> str:
    digits = number.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
