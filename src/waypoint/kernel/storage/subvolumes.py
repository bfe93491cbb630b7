"""Subvolumes of btrfs: create, snapshot, delete. Each is one ioctl on the parent directory."""

import fcntl
import os
import struct
from pathlib import Path

__all__ = ["create_subvolume", "delete_subvolume", "snapshot_subvolume"]

# struct btrfs_ioctl_vol_args_v2: fd, transid, flags, 4 unused words, name; 4096 bytes.
_VOL_ARGS = struct.Struct("=qQQ32x4040s")
_NAME_BYTES_MAX = 255
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_CREATE_V2 = 0x50009418
_SNAP_DESTROY_V2 = 0x5000943F
_READ_ONLY = 1 << 1


def create_subvolume(path: Path) -> None:
    """Make an empty subvolume."""
    _on_parent(path, _SUBVOL_CREATE_V2, fd=0, flags=0)


def snapshot_subvolume(source: Path, target: Path, *, read_only: bool) -> None:
    """Make ``target`` a snapshot of ``source``. The kernel first writes out the source's dirty data."""
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _on_parent(target, _SNAP_CREATE_V2, fd=fd, flags=_READ_ONLY if read_only else 0)
    finally:
        os.close(fd)


def delete_subvolume(path: Path) -> None:
    """Unlink a subvolume; the kernel frees its space in the background. Nothing is done if it does not exist."""
    try:
        _on_parent(path, _SNAP_DESTROY_V2, fd=0, flags=0)
    except FileNotFoundError:
        return


def _on_parent(path: Path, request: int, *, fd: int, flags: int) -> None:
    name = os.fsencode(path.name)
    if not name or len(name) > _NAME_BYTES_MAX:
        raise ValueError(f"not a subvolume name: {path}")
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(parent, request, bytearray(_VOL_ARGS.pack(fd, 0, flags, name)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(parent)
