"""POSIX locks that CRIU does not save: those that a process holds through a descriptor that it has inherited."""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from waypoint.kernel.criu.images import PosixLock, add_posix_locks, read_posix_locks

__all__ = ["LocksSeen"]

_SEEN = "WAYPOINT_LOCKS_SEEN"  # native/preload/locks_seen.c
_TYPES = {b"READ": fcntl.F_RDLCK, b"WRITE": fcntl.F_WRLCK}


class LocksSeen:
    """A context manager for the time of one dump: which POSIX locks the processes have."""

    def __enter__(self) -> "LocksSeen":
        self._output = os.memfd_create("locks", os.MFD_CLOEXEC)
        self.descriptors = (self._output,)
        self.env = {_SEEN: str(self._output)}
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._output)

    def keep_inherited(self, images: Path, inside: Mapping[int, int]) -> None:
        """Add to the images, which are complete, the locks that are missing in them.

        ``inside`` are the pids in the tree of its processes.
        """
        text = os.pread(self._output, os.fstat(self._output).st_size, 0)
        seen = [lock for line in text.splitlines() if (lock := _parse(line)) is not None]
        if not seen:
            return
        # Each was seen by every descriptor that the process has of it.
        held = {lock._replace(pid=inside[lock.pid], fd=0): lock.fd for lock in seen}
        saved = {lock._replace(fd=0) for lock in read_posix_locks(images)}
        missing = [lock._replace(fd=fd) for lock, fd in held.items() if lock not in saved]
        if missing:
            add_posix_locks(images, missing)


def _parse(line: bytes) -> PosixLock | None:
    """A lock of a line that says by which process and descriptor it was seen; None if it is another kind of lock."""
    pid, fd, _, kind, *rest = line.split()
    if kind != b"POSIX":
        return None
    _, access, _, _, start, end = rest
    length = 0 if end == b"EOF" else int(end) - int(start) + 1
    return PosixLock(pid=int(pid), fd=int(fd), type=_TYPES[access], start=int(start), length=length)
