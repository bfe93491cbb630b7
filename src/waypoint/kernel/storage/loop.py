"""Loop devices: a regular file used as a disk.

Devices are attached with the *autoclear* flag: the kernel frees the device itself when its last user (the
mount) has ended, so neither a crash nor a plain ``umount`` leaves one behind. Until the file system is
mounted, our open descriptor is that last user; hence attaching is a context manager, not a call.

The numbers come from ``linux/loop.h``; they are the kernel's ABI and the same on every architecture.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waypoint.errors import AbilityMissing

__all__ = ["attached_loop", "find_loop", "refresh_capacity"]

LOOP_GET_STATUS64 = 0x4C05
LOOP_SET_CAPACITY = 0x4C07
LOOP_CONFIGURE = 0x4C0A
LOOP_CTL_GET_FREE = 0x4C82

LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16

LOOP_MAJOR = 7
BLOCK_SIZE = 4096  # direct I/O to the backing file must be aligned to its blocks
ATTACH_ATTEMPTS = 32  # another process may take the free device after we ask for it and before we attach

# struct loop_info64: device, inode, rdevice, offset, sizelimit, number, encrypt type, key size, flags,
# file name, crypt name, key, init[2]
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
# struct loop_config: fd, block size, loop_info64, reserved[8]
_CONFIG = struct.Struct(f"=2I{_INFO.size}s64x")


@contextmanager
def attached_loop(backing: Path, *, direct_io: bool) -> Iterator[Path]:
    """Attach ``backing`` to a loop device for the length of the block.

    A file system mounted from the device inside the block keeps it alive afterwards; otherwise the device
    is free again at the end. Raises AbilityMissing if the kernel has no loop devices.
    """
    backing_fd = os.open(backing, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, device_fd = _attach(backing_fd, backing, direct_io)
    finally:
        os.close(backing_fd)
    try:
        yield device
    finally:
        os.close(device_fd)


def find_loop(backing: Path) -> Path | None:
    """The loop device that serves ``backing``, if any; compared by inode, so moved files are found too."""
    wanted = os.stat(backing)
    for bound in sorted(Path("/sys/block").glob("loop*/loop")):
        device = Path("/dev") / bound.parent.name
        try:
            fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # freed since we listed it, or its node is missing: not ours either way
        try:
            fields = _INFO.unpack(fcntl.ioctl(fd, LOOP_GET_STATUS64, bytes(_INFO.size)))
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: freed meanwhile
                raise
            continue
        finally:
            os.close(fd)
        if (fields[0], fields[1]) == (wanted.st_dev, wanted.st_ino):
            return device
    return None


def refresh_capacity(device: Path) -> None:
    """Tell the kernel that the file behind ``device`` has grown."""
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, LOOP_SET_CAPACITY, 0)
    finally:
        os.close(fd)


def _attach(backing_fd: int, backing: Path, direct_io: bool) -> tuple[Path, int]:
    flags = LO_FLAGS_AUTOCLEAR | (LO_FLAGS_DIRECT_IO if direct_io else 0)
    label = os.fsencode(backing)[-63:]
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, label, b"", b"", 0, 0)
    config = _CONFIG.pack(backing_fd, BLOCK_SIZE, info)
    for _ in range(ATTACH_ATTEMPTS):
        device = _free_device()
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, LOOP_CONFIGURE, config)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EBUSY:
                continue
            raise OSError(error.errno, error.strerror, os.fspath(backing)) from error
        return device, fd
    raise OSError(errno.EBUSY, "no loop device could be taken", os.fspath(backing))


def _free_device() -> Path:
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise AbilityMissing("this kernel has no loop devices", hint="modprobe loop") from error
    try:
        number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
    device = Path(f"/dev/loop{number}")
    if not device.exists():  # a container's /dev has only the nodes that existed when it was made
        os.mknod(device, 0o660 | 0o060000, os.makedev(LOOP_MAJOR, number))
    return device
