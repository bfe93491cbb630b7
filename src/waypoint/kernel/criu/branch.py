"""Save the process tree of a branch, and restore one next to whatever runs.

CRIU works inside the branch's network namespace and leaves the network alone; letting it dump or restore the namespace
costs tens of milliseconds more. At a restore it also works in the branch's cgroup, so every process that it makes
starts there: whatever happens to us, killing that cgroup removes a half-restored tree.

Read next: :mod:`waypoint.engine.checkpoint` and :mod:`waypoint.engine.restore`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.criu.handed_over import Output
from waypoint.kernel.criu.images import (
    DumpStatistics,
    repair_controlling_terminals,
    repair_foreground_groups,
    terminals_of_init,
)
from waypoint.kernel.criu.last_calls import LastCalls
from waypoint.kernel.criu.posix_locks import LOCKS_SEEN, keep_inherited_locks
from waypoint.kernel.criu.program import Criu, bind_options
from waypoint.kernel.criu.relocations import FILES_SEEN, Relocations, keep_relocations
from waypoint.kernel.criu.rpc import Opt, Worker
from waypoint.kernel.criu.unix_peers import PEERS_SEEN, keep_peers, saved_peers
from waypoint.kernel.criu.watches import SavedWatches, WatchRecorder
from waypoint.kernel.processes.process_tree import pids_inside

__all__ = ["dump_tree", "restore_tree"]

_TERMINALS = "WAYPOINT_TERMINALS"  # native/preload/terminals.c


def dump_tree(
    criu: Criu,
    pid: int,
    *,
    images: Path,
    work: Path,
    root: Path,
    external: Sequence[str] = (),
    hold: Sequence[int] = (),
    devices: Mapping[str, int] | None = None,
    watches: WatchRecorder,
    on_stopped: Callable[[], None],
    on_saved: Callable[[], None],
) -> DumpStatistics:
    """Save the tree of ``pid`` into ``images`` and let it run on.

    ``on_stopped`` is called when every task is stopped, ``on_saved`` when the processes are saved and before
    any runs again. ``devices`` are the numbers, by names, of its file systems that will have other
    numbers in a copy. The descriptors in ``hold`` stay open until CRIU has ended, even
    if we die. However this ends, the tree runs again. Raises CannotBeSaved, CriuFailed, and what the two functions raise.
    """
    network = ("--net", f"/proc/{pid}/ns/net")

    def stopped(_pid: int) -> None:
        watches.note_unread()
        on_stopped()

    def saved(_pid: int) -> None:
        watches.forget_events()
        keep_inherited_locks(images, pid, locks)
        on_saved()

    with Output(FILES_SEEN) as files, Output(PEERS_SEEN) as peers, Output(LOCKS_SEEN) as locks:
        with Worker(
            criu,
            images=images,
            work=work,
            root=root,
            enter=network,
            env={**watches.env, **files.env, **peers.env, **locks.env},
            hold=(
                *hold,
                *(*watches.descriptors, *files.descriptors, *peers.descriptors, *locks.descriptors),
            ),
        ) as worker:
            statistics = worker.dump(
                [
                    *((Opt.EXTERNAL, mount) for mount in external),
                    *((Opt.PID, pid), (Opt.LEAVE_RUNNING, True)),
                    # The server's end of a connection that it has not accepted; the caller looks after these.
                    (Opt.SKIP_IN_FLIGHT, True),
                ],
                {"query-ext-files": stopped, "post-dump": saved},
            )
        keep_peers(images, peers)
        if devices:
            keep_relocations(criu, images, devices, files)
    repair_foreground_groups(images)
    repair_controlling_terminals(images)
    return statistics


def restore_tree(
    criu: Criu,
    *,
    images: Path,
    work: Path,
    root: Path,
    cgroups: Sequence[Path],
    network: int | None = None,
    close_connections: bool = False,
    external: Sequence[str] = (),
    binds: Sequence[tuple[Path, Path]] = (),
    devices: Callable[[], Mapping[str, int]] = dict,
    on_begin: Callable[[], None] | None = None,
    on_restored: Callable[[int], None],
) -> int:
    """Restore the tree in ``images`` on ``root``, in that network namespace and in the ``cgroups``, in which CRIU
    itself works meanwhile; return its pid.

    ``root`` must be a mount; ``binds``, each a directory and its mount point, are mounted for CRIU alone.
    Without a network namespace it gets a new one. With ``close_connections``, no TCP connection is restored: its
    descriptor is there, but closed. ``devices`` are called for the numbers that file systems have now. ``on_begin`` is
    called before anything is made, ``on_restored`` with the pid before any task runs.
    """
    enter = (
        *("--net", "new" if network is None else f"/proc/self/fd/{network}"),
        *(f"--cgroup={group}" for group in cgroups),
        *bind_options(binds),
    )
    init_pid = 0

    def restored(pid: int) -> None:
        nonlocal init_pid
        init_pid = pid
        on_restored(pid)

    def about_to_run(_pid: int) -> None:
        pids = pids_inside(init_pid, Cgroup(cgroups[0]).members())
        outside = {inside: pid for pid, inside in pids.items()}
        relocations.apply(outside, devices())
        calls.complete(outside)
        watches.complete(outside)

    relocations = Relocations(images)

    with (
        SavedWatches(images) as watches,
        saved_peers(images) as peers,
        LastCalls(images) as calls,
        Worker(
            criu,
            images=images,
            work=work,
            root=root,
            enter=enter,
            env={_TERMINALS: terminals_of_init(images), **watches.env, **peers.env, **calls.env},
            hold=(
                *(() if network is None else (network,)),
                *(*watches.descriptors, *peers.descriptors, *calls.descriptors),
            ),
        ) as worker,
    ):
        return worker.restore(
            [
                *((Opt.EXTERNAL, mount) for mount in external),
                *([(Opt.TCP_CLOSE, True)] if close_connections else []),
            ],
            {
                "pre-restore": lambda _pid: None if on_begin is None else on_begin(),
                "post-restore": restored,
                "pre-resume": about_to_run,
            },
        )
