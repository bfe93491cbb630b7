"""The walls around the processes of a branch, as the host's kernel shows them, for comparing branches."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from waypoint import Branch, Session

__all__ = ["BranchWalls", "ProcessWalls", "look_at_walls"]

_STATUS = (
    *("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
)
# Not "time": CRIU gives a restored tree its own time namespace, so that its clocks continue from where they were.
_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")


@dataclass(frozen=True)
class ProcessWalls:
    """The walls of one thread: what its status says, and which of its namespaces are the host's."""

    status: tuple[tuple[str, str], ...]
    shared_with_host: tuple[str, ...]
    is_in_its_cgroup: bool

    def __getitem__(self, name: str) -> str:
        return dict(self.status)[name]


@dataclass(frozen=True)
class BranchWalls:
    """The walls of all threads, by their command and their pid inside; and the mounts, without their ids."""

    processes: dict[tuple[str, int], ProcessWalls]
    mounts: frozenset[str]


def look_at_walls(branch: Branch | Session) -> BranchWalls:
    """Read the walls of ``branch`` now."""
    main = branch.main if isinstance(branch, Session) else branch
    cgroup = main.session.context.platform.cgroup(main.record.incarnation)
    processes = {}
    for pid in cgroup.members():
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = _fields(task / "status")
            name = (fields["Name"], int(fields["NSpid"].split()[-1]))
            processes[name] = ProcessWalls(
                tuple((field, fields[field]) for field in _STATUS),
                tuple(kind for kind in _NAMESPACES if _is_shared(task, kind)),
                cgroup.path.name in (task / "cgroup").read_text(),
            )
    return BranchWalls(processes, _mounts(main.record.init_pid))


def _fields(status: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in status.read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def _is_shared(task: Path, kind: str) -> bool:
    return os.readlink(task / "ns" / kind) == os.readlink(f"/proc/self/ns/{kind}")


def _mounts(pid: int) -> frozenset[str]:
    """Root, mount point, flags and type of each mount, without what differs between branches."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return frozenset(
        re.sub(r"^\d+ \d+ \d+:\d+ (\S+ \S+ \S+) .*- (\S+) .*$", r"\1 \2", line) for line in lines
    )
