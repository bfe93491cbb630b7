"""The space that a copy by reference adds: the blocks of a file that it does not share with another one."""

import fcntl
import struct
from pathlib import Path

__all__ = ["added_bytes"]

FS_IOC_FIEMAP = 0xC020660B
WRITE_OUT = 0x1  # first; before that, new blocks have no location
LAST, UNKNOWN_LOCATION = 0x1, 0x2 | 0x4  # of an extent
AT_ONCE = 512
# struct fiemap: start, length, flags, mapped extents, space for extents, reserved
_REQUEST = struct.Struct("=QQIIII")
# struct fiemap_extent: logical, physical, length, reserved[2], flags, reserved[3]
_EXTENT = struct.Struct("=QQQ16xI12x")


def added_bytes(path: Path, origin: Path | None) -> int:
    """How many bytes of ``path`` lie in blocks that ``origin`` does not have."""
    own = _physical_ranges(path)
    shared = _physical_ranges(origin) if origin is not None and origin.exists() else []
    return sum(end - begin for begin, end in own) - _overlap(sorted(own), sorted(shared))


def _overlap(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> int:
    total = at = 0
    for begin, end in first:
        while at < len(second) and second[at][1] <= begin:
            at += 1
        look = at
        while look < len(second) and second[look][0] < end:
            total += min(end, second[look][1]) - max(begin, second[look][0])
            look += 1
    return total


def _physical_ranges(path: Path) -> list[tuple[int, int]]:
    """The ranges of bytes on its device in which the file lies."""
    found: list[tuple[int, int]] = []
    logical, flags = 0, 0
    with open(path, "rb") as file:
        while not flags & LAST:
            buffer = bytearray(_REQUEST.size + AT_ONCE * _EXTENT.size)
            _REQUEST.pack_into(buffer, 0, logical, (1 << 64) - 1 - logical, WRITE_OUT, 0, AT_ONCE, 0)
            fcntl.ioctl(file.fileno(), FS_IOC_FIEMAP, buffer)
            count = _REQUEST.unpack_from(buffer)[3]
            if count == 0:
                break
            for number in range(count):
                begin, physical, length, flags = _EXTENT.unpack_from(
                    buffer, _REQUEST.size + number * _EXTENT.size
                )
                logical = begin + length
                if not flags & UNKNOWN_LOCATION:
                    found.append((physical, physical + length))
    return found
