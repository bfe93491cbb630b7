"""Take a checkpoint: files and processes of a running branch as one consistent point, or its files alone.

The branch is paused, never stopped: from the moment CRIU has seized its processes until the file snapshot
is made. What can be slow is done before (writing out dirty files) or after (publishing).
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from waypoint.engine.extra_mounts import find_mount_points, save_mount_points
from waypoint.engine.limits import BranchLimits
from waypoint.engine.obstacles import find_obstacles, refuse_undelivered
from waypoint.engine.overlays import overlays_of
from waypoint.engine.platform import Platform
from waypoint.engine.shares import find_shares
from waypoint.engine.watched_files import find_lost_watches
from waypoint.errors import DumpFailed, EngineError
from waypoint.kernel.cgroup.freezer import Freezer
from waypoint.kernel.criu.branch import dump_tree
from waypoint.kernel.criu.images import forget_sizes_below
from waypoint.kernel.criu.last_calls import connect_again_later
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.criu.refusal import CannotBeSaved
from waypoint.kernel.criu.terminals import empty_terminals, refill_terminals
from waypoint.kernel.criu.watches import WatchRecorder
from waypoint.kernel.network.in_flight import InFlight, NetworkView
from waypoint.log import Timeline
from waypoint.model import BranchRecord, NetworkMode, SessionRecord

__all__ = ["capture_files", "discard_checkpoint", "prepare", "resume_input", "save", "save_files"]

TRIES = 10  # each is spoilt only by a client that connects, and sends, in the millisecond before the pause
UNIX_CLIENT_HAS_SENT = "on an in-flight socket"  # what CRIU says

_NO_SPACE = os.strerror(errno.ENOSPC)


def prepare(platform: Platform, branch: BranchRecord, checkpoint_id: str, timeline: Timeline) -> None:
    """Make the directory of a checkpoint and write out dirty data, while the branch and its clients keep running."""
    with timeline.step("prepare"):
        platform.layout.images(checkpoint_id).mkdir(parents=True)
    with timeline.step("flush"):
        platform.layers.flush(platform.layout.layer(branch.incarnation))


def save(
    platform: Platform,
    session: SessionRecord,
    branch: BranchRecord,
    checkpoint_id: str,
    *,
    quiesce: Callable[[], None],
    hold: Sequence[int],
    freezer: Freezer | None = None,
    timeline: Timeline,
) -> int:
    """Write files and processes of ``branch`` as ``checkpoint_id``, which is prepared; return the images' size.

    ``quiesce`` makes init drop its clients. CRIU holds the locks in ``hold`` too, until it has ended: if we
    die, nobody touches the branch before CRIU has let it go. When this returns or raises, the branch runs; but
    with a ``freezer`` it is frozen as it was saved, until the caller thaws it. On failure parts of the checkpoint
    may exist and typed input may still be set aside: the caller calls discard_checkpoint() and resume_input().
    """
    with timeline.step("quiesce"):
        quiesce()

    for tries_left in reversed(range(TRIES)):
        with suppress(_UnderWay):
            return _dump(
                platform,
                session,
                branch,
                checkpoint_id,
                may_try_again=tries_left > 0,
                hold=hold,
                freezer=freezer,
                timeline=timeline,
            )
    raise AssertionError("the last try either succeeds or says why not")


class _UnderWay(Exception):
    """Between the look at the network before the pause and the pause, something has come under way in it."""


def _dump(
    platform: Platform,
    session: SessionRecord,
    branch: BranchRecord,
    checkpoint_id: str,
    *,
    may_try_again: bool,
    hold: Sequence[int],
    freezer: Freezer | None,
    timeline: Timeline,
) -> int:
    layout = platform.layout
    images = layout.images(checkpoint_id)
    limits = BranchLimits(platform, session.settings.limits, branch.incarnation)
    shared = find_shares(platform, branch.incarnation, branch.init_pid)
    extra = find_mount_points(platform, branch)
    members = platform.cgroup(branch.incarnation).members
    in_flight = InFlight()
    shares_network = session.settings.network.mode is NetworkMode.HOST
    where = f"branch {branch.name!r} of session {branch.session_id}"
    layer, saved_layer = layout.layer(branch.incarnation), layout.checkpoint_layer(checkpoint_id)
    overlays = overlays_of(platform, session, branch)

    def make_ready() -> None:
        # A mount that is not where CRIU was told would be saved as the branch's own: with the files of this incarnation.
        if (shared, extra) != (
            find_shares(platform, branch.incarnation, branch.init_pid),
            find_mount_points(platform, branch),
        ):
            raise EngineError("a mount was moved while the branch was being saved", hint="save it again")
        nonlocal in_flight
        before, in_flight = in_flight, InFlight() if shares_network else network.find_in_flight()
        if may_try_again and in_flight - before:
            raise _UnderWay
        refuse_undelivered(in_flight.undelivered, branch.init_pid, members())
        empty_terminals(branch.init_pid)
        limits.raise_for_criu()

    def finish() -> None:
        capture_files(platform, branch, checkpoint_id, limits, timeline)
        limits.lower_after_criu()
        refill_terminals(branch.init_pid)
        if freezer is not None:
            freezer.begin()

    try:
        with (
            timeline.step("dump"),
            platform.criu_work(branch.session_id, checkpoint_id) as work,
            NetworkView(branch.init_pid) as network,
            WatchRecorder(branch.init_pid, members(), overlays) as watches,
            _network_stopped(platform, branch, hold),
        ):
            if not shares_network:
                in_flight = network.await_delivery()
            statistics = dump_tree(
                platform.criu,
                branch.init_pid,
                images=images,
                work=work,
                root=layout.mount(branch.incarnation),
                external=[
                    *(_external(mount_point, key) for key, mount_point in extra.items()),
                    *(_external(mount_point, key) for mount_point, key in shared.items()),
                ],
                hold=hold,
                devices={overlay.name: overlay.device for overlay in overlays},
                watches=watches,
                on_stopped=make_ready,
                on_saved=finish,
            )
            watches.keep(images, partial(find_lost_watches, overlays, branch.init_pid, layer, saved_layer))
    except CannotBeSaved as error:
        raise DumpFailed(where, str(error), hint=error.hint) from error
    except CriuFailed as error:
        if _NO_SPACE in error.reason:
            raise OSError(errno.ENOSPC, _NO_SPACE, os.fspath(images)) from error
        if UNIX_CLIENT_HAS_SENT in error.reason:
            try:
                refuse_undelivered(in_flight.of_unix, branch.init_pid, members())
            except CannotBeSaved as refusal:
                raise DumpFailed(where, str(refusal), hint=refusal.hint) from error
        obstacles = find_obstacles(platform.cgroup(branch.incarnation))
        reason = f"{'; '.join(obstacles)} [{error.reason}]" if obstacles else error.reason
        raise DumpFailed(where, reason, error.log_file) from error
    finally:
        limits.lower_after_criu()
    if freezer is not None:
        freezer.wait()
    if shared:
        forget_sizes_below(images, shared)
    connect_again_later(images, in_flight.waiting)
    timeline.note("pause", statistics.pause_ms)
    return _size(images)


@contextmanager
def _network_stopped(platform: Platform, branch: BranchRecord, hold: Sequence[int]) -> Iterator[None]:
    """Freeze the NAT: what arrives from outside while CRIU reads a connection would make CRIU fail."""
    cgroup = platform.network_cgroup(branch.incarnation)
    with Freezer(cgroup, hold) as freezer:
        if cgroup.is_populated():
            freezer.begin()
            freezer.wait()
        yield


def save_files(
    platform: Platform,
    session: SessionRecord,
    branch: BranchRecord,
    checkpoint_id: str,
    *,
    hold: Sequence[int],
    timeline: Timeline,
) -> None:
    """Write the files of ``branch`` as ``checkpoint_id``, which is prepared. Its processes are frozen meanwhile.

    As with save(), the branch runs when this returns or raises, and also if we die.
    """
    limits = BranchLimits(platform, session.settings.limits, branch.incarnation)
    with Freezer(platform.cgroup(branch.incarnation), hold) as freezer:
        with timeline.step("stop"):
            freezer.begin()
            began = time.monotonic()
            freezer.wait()
        capture_files(platform, branch, checkpoint_id, limits, timeline)
    timeline.note("pause", (time.monotonic() - began) * 1000)


def capture_files(
    platform: Platform,
    branch: BranchRecord,
    checkpoint_id: str,
    limits: BranchLimits,
    timeline: Timeline,
) -> None:
    """Save the files of a branch. No process of it may run now."""
    layout = platform.layout
    with timeline.step("files"):
        platform.layers.capture(layout.layer(branch.incarnation), layout.checkpoint_layer(checkpoint_id))
    save_mount_points(platform, branch, checkpoint_id)
    limits.save_space_left(checkpoint_id)


def resume_input(branch: BranchRecord) -> None:
    """Type again the input that a checkpoint that was cut off took out of the terminals. Done already is fine."""
    try:
        refill_terminals(branch.init_pid)
    except ProcessLookupError:  # nobody is left to read it
        return


def discard_checkpoint(platform: Platform, checkpoint_id: str) -> None:
    """Remove what was written for a checkpoint. Done already is fine. CRIU's log stays."""
    platform.layers.delete(platform.layout.checkpoint_layer(checkpoint_id))
    directory = platform.layout.checkpoint(checkpoint_id)
    if directory.exists():
        shutil.rmtree(directory)


def _external(mount_point: str, key: str) -> str:
    """CRIU's option for a mount at ``mount_point`` that is ours: it must not save it as one of the branch."""
    if "]:" in mount_point:  # CRIU would take the name to end there
        raise EngineError(
            f"{mount_point!a} is a mount of the host, below a directory whose name cannot be passed to CRIU",
            hint="rename that directory in the session, and save it again",
        )
    return f"mnt[{mount_point}]:{key}"


def _size(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(directory))
