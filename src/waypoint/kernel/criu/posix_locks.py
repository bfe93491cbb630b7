"""POSIX locks that CRIU does not save: those that a process holds through a descriptor that it has inherited."""

import fcntl
from collections.abc import Mapping
from pathlib import Path

from waypoint.kernel.criu.images import PosixLock, add_posix_locks, read_posix_locks
from waypoint.kernel.criu.refusal import CannotBeSaved
from waypoint.kernel.processes.process_tree import program_of

__all__ = ["keep_inherited_locks"]

_TYPES = {b"READ": fcntl.F_RDLCK, b"WRITE": fcntl.F_WRLCK}


def keep_inherited_locks(images: Path, inside: Mapping[int, int]) -> None:
    """Add to the images the locks that are missing in them. All tasks are stopped.

    ``inside`` are the pids in the tree of its processes. Raises CannotBeSaved.
    """
    held = [
        lock
        for line in Path("/proc/locks").read_bytes().splitlines()
        if (lock := _parse(line)) is not None and lock.pid in inside
    ]
    if not held:
        return
    saved = {lock._replace(fd=0) for lock in read_posix_locks(images)}
    missing = [lock for lock in held if lock._replace(pid=inside[lock.pid]) not in saved]
    if missing:
        add_posix_locks(
            images,
            [lock._replace(pid=inside[lock.pid], fd=_find_descriptor(lock, inside)) for lock in missing],
        )


def _parse(line: bytes) -> PosixLock | None:
    """A lock of a line of /proc/locks, or of what such a line says in /proc/PID/fdinfo; None if it is another kind."""
    _, kind, *rest = line.split()
    if kind != b"POSIX":
        return None
    _, access, pid, _, start, end = rest
    length = 0 if end == b"EOF" else int(end) - int(start) + 1
    return PosixLock(pid=int(pid), fd=0, type=_TYPES[access], start=int(start), length=length)


def _find_descriptor(lock: PosixLock, inside: Mapping[int, int]) -> int:
    for description in Path(f"/proc/{lock.pid}/fdinfo").iterdir():
        for line in description.read_bytes().splitlines():
            if line.startswith(b"lock:") and _parse(line.removeprefix(b"lock:")) == lock:
                return int(description.name)
    raise CannotBeSaved(
        f"process {inside[lock.pid]} ({program_of(lock.pid)}) has a lock on a file that it has no descriptor of",
        hint="end that process, and save again",
    )
