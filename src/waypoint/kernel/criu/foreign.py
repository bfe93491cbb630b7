"""Save a process tree that runs in our own namespaces, and restore it with the pids it had."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waypoint.kernel.criu.images import DumpStatistics, repair_foreign_terminals
from waypoint.kernel.criu.program import Criu
from waypoint.kernel.criu.protobuf import encode
from waypoint.kernel.criu.rpc import Opt, Worker

__all__ = ["dump_foreign_tree", "restore_foreign_tree"]


def dump_foreign_tree(
    criu: Criu,
    pid: int,
    *,
    images: Path,
    work: Path,
    leave_running: bool,
    external: Sequence[str] = (),
    hold: Sequence[int] = (),
    on_saved: Callable[[], None] | None = None,
) -> DumpStatistics:
    """Save the tree of ``pid``; it runs on, or is killed once it is saved.

    ``external`` names what is not saved, and what restore_foreign_tree() is given a descriptor for; ``hold`` and
    ``on_saved`` are as for dump_tree().
    """
    network = ("--net", f"/proc/{pid}/ns/net")
    with Worker(criu, images=images, work=work, enter=network, hold=hold) as worker:
        statistics = worker.dump(
            [
                *((Opt.EXTERNAL, name) for name in external),
                *((Opt.PID, pid), (Opt.LEAVE_RUNNING, leave_running), (Opt.SHELL_JOB, True)),
            ],
            {} if on_saved is None else {"post-dump": lambda _pid: on_saved()},
        )
    repair_foreign_terminals(images)
    return statistics


def restore_foreign_tree(
    criu: Criu,
    *,
    images: Path,
    work: Path,
    cgroup: Path | None,
    inherited: Mapping[str, int] | None = None,
) -> int:
    """Restore such a tree with the same pids, which must be free; return the pid of its root.

    ``inherited`` are descriptors for what was external when it was saved.
    """
    given = inherited or {}
    enter = () if cgroup is None else ("--cgroup", os.fspath(cgroup))
    with Worker(criu, images=images, work=work, enter=enter, hold=tuple(given.values())) as worker:
        return worker.restore(
            [
                (Opt.SHELL_JOB, True),
                *((Opt.INHERIT, encode([(1, key), (2, fd)])) for key, fd in given.items()),
            ],
            {},
        )
