"""Find out what in a branch keeps CRIU from saving it.

CRIU's log often names only the step that failed; /proc shows which process has something that CRIU cannot save.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from waypoint.kernel.cgroup.group import Cgroup

__all__ = ["find_obstacles"]

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
