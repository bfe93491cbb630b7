"""Find out what in a branch keeps CRIU from saving it.

CRIU's log often names only the step that failed; /proc shows which process has something that CRIU cannot save.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.criu.refusal import CannotBeSaved
from waypoint.kernel.network.in_flight import Undelivered
from waypoint.kernel.processes.process_tree import holder_of_socket, pids_inside, program_of

__all__ = ["find_obstacles", "refuse_undelivered"]

_DESCRIPTORS = (
    ("anon_inode:[io_uring]", "uses io_uring (for Node.js, UV_USE_IO_URING=0 turns it off)"),
    ("anon_inode:[userfaultfd]", "uses userfaultfd"),
    ("/secretmem", "uses memfd_secret"),
)


def find_obstacles(cgroup: Cgroup) -> list[str]:
    """One sentence for each process that has something which cannot be saved; empty if none is known."""
    return [
        f"process {pid} ({name}) {obstacle}"
        for pid in cgroup.members()
        for name, obstacle in _obstacles_of(Path(f"/proc/{pid}"))
    ]


def refuse_undelivered(undelivered: Collection[Undelivered], init_pid: int, pids: Iterable[int]) -> None:
    """Raise CannotBeSaved if something has been sent that no process can have received."""
    for one in undelivered:
        pid = holder_of_socket(pids, one.listener) if one.listener else None
        if pid is not None:
            inside = pids_inside(init_pid, [pid])[pid]
            what = f"process {inside} ({program_of(pid)}) has not accepted {one.what}"
        else:
            what = f"{one.what} has not been accepted" if one.listener else one.what
        raise CannotBeSaved(
            what, hint="wait until it has arrived, or end the server or the client, and save again"
        )


def _obstacles_of(process: Path) -> Iterator[tuple[str, str]]:
    try:
        name = (process / "comm").read_text().strip()
        status = (process / "status").read_text()
        links = [os.readlink(entry) for entry in (process / "fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return
    for pattern, obstacle in _DESCRIPTORS:
        if any(link.startswith(pattern) for link in links):
            yield name, obstacle
    if "\nTracerPid:\t0\n" not in status:
        yield name, "is being traced by a debugger or strace"
