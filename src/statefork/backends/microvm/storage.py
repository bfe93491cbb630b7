"""Where machines are kept: in a directory whose files can be copied by reference, so that any copy takes milliseconds.

If the state directory's own file system can do that (btrfs, XFS), it is a directory there; else Waypoint's pool, a
btrfs in a sparse file, mounted while someone works with it. All environments of one state directory share it.
"""

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waypoint.errors import Busy, StoreError
from waypoint.store.lock import locked
from waypoint.store.pool import create_pool, open_pool, unmount_pool
from waypoint.store.pool_record import PoolKind, read_record

__all__ = ["Storage", "can_clone", "clone_file", "remove_directory"]

log = logging.getLogger(__name__)

FICLONE = 0x40049409
_CANNOT_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.EINVAL)


class Storage:
    """The storage of one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Its root directory, ready to use: nobody unmounts it while the block lasts.

        Between two blocks a running machine keeps it mounted, because it has files open there.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.directory.stat().st_uid != os.geteuid():
            raise StoreError(f"{self.directory} belongs to someone else", hint="choose another directory")
        with locked(self.directory / "use.lock", what="the storage of microVMs", shared=True):
            yield self._root()

    def release(self) -> None:
        """Unmount it unless someone uses it."""
        if read_record(self.directory) is None:
            return
        with (
            suppress(Busy),
            locked(self.directory / "use.lock", what="the storage of microVMs", wait=False),
        ):
            unmount_pool(self.directory)

    def _root(self) -> Path:
        plain = self.directory / "machines"
        if plain.is_dir():
            return plain
        if read_record(self.directory) is None and can_clone(self.directory):
            plain.mkdir(mode=0o700, exist_ok=True)
            return plain
        if read_record(self.directory) is None:
            create_pool(self.directory, progress=log.info)
        pool = open_pool(self.directory)
        if pool.kind is PoolKind.DIRECTORY:
            log.warning("no file system for %s that copies by reference: snapshots copy all data", pool.root)
        return pool.root


def can_clone(directory: Path) -> bool:
    """Whether files in ``directory`` can be copied by reference. Tries it."""
    probes = [directory / f".reflink-{os.getpid()}-{end}" for end in ("from", "to")]
    try:
        probes[0].write_bytes(bytes(4096))
        with open(probes[0], "rb") as source, open(probes[1], "wb") as target:
            return _clone(source.fileno(), target.fileno())
    finally:
        for probe in probes:
            probe.unlink(missing_ok=True)


def clone_file(source: Path, target: Path) -> None:
    """A new file with the content of ``source``: by reference where possible, else what is not a hole is copied."""
    with open(source, "rb") as old, open(target, "xb") as new:
        if _clone(old.fileno(), new.fileno()):
            return
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole from here on
                    return
                raise
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            os.lseek(old.fileno(), at, os.SEEK_SET)
            new.seek(at)
            while at < end:
                at += os.copy_file_range(old.fileno(), new.fileno(), end - at)


def _clone(source_fd: int, target_fd: int) -> bool:
    try:
        fcntl.ioctl(target_fd, FICLONE, source_fd)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return False
        raise
    return True


def remove_directory(path: Path) -> None:
    """Remove a directory with all it holds, if it still exists."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
