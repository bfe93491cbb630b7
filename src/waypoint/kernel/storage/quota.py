"""Simple quotas of btrfs: each subvolume has an account of the space it has taken and of how much it may take.

An extent is on the account of the subvolume that wrote it, for as long as anyone refers to it: a snapshot starts with
an empty account, and what a snapshot still holds stays on the account of its writer. Why these and not the older
quota groups: docs/adr/0009-disk-limit-by-simple-quotas.md.
"""

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.storage.pool_filesystem import btrfs_uuid

__all__ = ["Account", "enable_simple_quotas", "has_simple_quotas", "kernel_has_simple_quotas"]

_SYSFS = Path("/sys/fs/btrfs")
_QUOTA_CTL = 0xC0109428
_QGROUP_LIMIT = 0x8030942B
_INO_LOOKUP = 0xD0009412
_ENABLE_SIMPLE = 4
_MAX_REFERENCED = 1
_NO_LIMIT = (1 << 64) - 1
_FIRST_INODE = 256  # of any subvolume: its root directory


def kernel_has_simple_quotas() -> bool:
    return (_SYSFS / "features" / "simple_quota").exists()


def has_simple_quotas(path: Path) -> bool:
    """Whether the btrfs that holds ``path`` keeps accounts."""
    try:
        return (_groups(path) / "mode").read_text().strip() == "squota"
    except FileNotFoundError:
        return False


def enable_simple_quotas(path: Path) -> None:
    """Make the btrfs that holds ``path`` keep accounts from now on, permanently: its format then says so."""
    _ioctl(path, _QUOTA_CTL, struct.pack("=QQ", _ENABLE_SIMPLE, 0))


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one subvolume: a directory of sysfs."""

    subvolume: Path
    number: int
    directory: Path

    @classmethod
    def of(cls, subvolume: Path) -> "Account":
        answer = _ioctl(subvolume, _INO_LOOKUP, struct.pack("=QQ4080x", 0, _FIRST_INODE))
        number = struct.unpack_from("=Q", answer)[0]
        return cls(subvolume, number, _groups(subvolume) / f"0_{number}")

    def taken(self) -> int:
        """The bytes it has written and not yet freed, including those that wait in memory to be written."""
        return self._read("referenced") + self._read("rsv_data")

    def maximum(self) -> int | None:
        return self._read("max_referenced") if self._read("limit_flags") & _MAX_REFERENCED else None

    def set_maximum(self, size_bytes: int | None) -> None:
        limit = _NO_LIMIT if size_bytes is None else size_bytes
        request = struct.pack("=6Q", self.number, _MAX_REFERENCED, limit, 0, 0, 0)
        # If we asked the subvolume itself, the change would be on its account, and be refused when that is full.
        _ioctl(self.subvolume.parent, _QGROUP_LIMIT, request)

    def _read(self, name: str) -> int:
        return int((self.directory / name).read_text())


def _groups(path: Path) -> Path:
    return _SYSFS / str(btrfs_uuid(path)) / "qgroups"


def _ioctl(path: Path, request: int, argument: bytes) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        buffer = bytearray(argument)
        fcntl.ioctl(fd, request, buffer)
        return bytes(buffer)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(fd)
