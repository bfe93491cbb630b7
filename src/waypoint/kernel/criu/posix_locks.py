"""POSIX locks that CRIU does not save: those that a process holds through a descriptor that it has inherited."""

import fcntl
from pathlib import Path

from waypoint.kernel.criu.handed_over import Output
from waypoint.kernel.criu.images import PosixLock, add_posix_locks, read_posix_locks
from waypoint.kernel.processes.process_tree import pids_inside

__all__ = ["LOCKS_SEEN", "keep_inherited_locks"]

LOCKS_SEEN = "WAYPOINT_LOCKS_SEEN"  # native/preload/locks_seen.c
_TYPES = {b"READ": fcntl.F_RDLCK, b"WRITE": fcntl.F_WRLCK}


def keep_inherited_locks(images: Path, init_pid: int, seen: Output) -> None:
    """Add to the images, which are complete, those of the locks ``seen`` that are missing. All tasks are stopped."""
    locks = [lock for line in seen.read().splitlines() if (lock := _parse(line)) is not None]
    if not locks:
        return
    inside = pids_inside(init_pid, {lock.pid for lock in locks})
    # Each was seen by every descriptor that the process has of it.
    held = {lock._replace(pid=inside[lock.pid], fd=0): lock.fd for lock in locks}
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
