"""How much the files of a checkpoint take beyond those of its parent."""

import os
import stat
from pathlib import Path

from waypoint.kernel.storage.extents import added_bytes

__all__ = ["added_by_layer"]

_OWN = ".waypoint"  # our init, in every layer


def added_by_layer(layer: Path, parent: Path | None) -> int:
    """The bytes on disk that ``layer`` does not share with ``parent``. Files that did not change are not opened."""
    total = 0
    for directory, below, files in os.walk(layer / "upper"):
        if _OWN in below and directory == os.fspath(layer / "upper"):
            below.remove(_OWN)
        for name in files:
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                total += _added(path, status, None if parent is None else parent / path.relative_to(layer))
    return total


def _added(path: Path, status: os.stat_result, before: Path | None) -> int:
    try:
        old = None if before is None else before.lstat()
    except FileNotFoundError:
        old = None
    if old is not None and _identity(old) == _identity(status):
        return 0
    is_file = old is not None and stat.S_ISREG(old.st_mode)
    return added_bytes(path, before if is_file else None)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
