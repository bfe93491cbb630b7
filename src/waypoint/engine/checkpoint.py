"""Take a checkpoint: files and processes of a running branch as one consistent point.

The branch is paused, never stopped: from the moment CRIU has seized its processes until the file snapshot
is made. What can be slow is done before (writing out dirty files) or after (publishing).
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from waypoint.engine.incarnation import external_mounts
from waypoint.engine.obstacles import find_obstacles
from waypoint.engine.platform import Platform
from waypoint.errors import DumpFailed
from waypoint.kernel.criu import CriuFailed
from waypoint.kernel.pty import empty_terminals, refill_terminals
from waypoint.log import Timeline
from waypoint.model import Base, BranchRecord

__all__ = ["discard_checkpoint", "prepare", "resume_input", "save"]

_NO_SPACE = os.strerror(errno.ENOSPC)


def prepare(platform: Platform, branch: BranchRecord, checkpoint_id: str, timeline: Timeline) -> None:
    """Make room for a checkpoint and write out what is dirty, while the branch and its clients go on."""
    with timeline.step("prepare"):
        platform.layout.images(checkpoint_id).mkdir(parents=True)
    with timeline.step("flush"):
        platform.layers.flush(platform.layout.layer(branch.incarnation))


def save(
    platform: Platform,
    base: Base,
    branch: BranchRecord,
    checkpoint_id: str,
    *,
    quiesce: Callable[[], None],
    hold: Sequence[int],
    timeline: Timeline,
) -> int:
    """Write files and processes of ``branch`` as ``checkpoint_id``, which is prepared; return the images' size.

    ``quiesce`` makes init let go of its clients. The locks in ``hold`` are kept by CRIU too, until it has
    ended: if we die, nobody touches the branch before CRIU has let it go. When this returns or raises,
    the branch runs. On failure parts of the checkpoint may exist and typed input may still be kept aside: the
    caller calls discard_checkpoint() and resume_input().
    """
    layout = platform.layout
    layer, images = layout.layer(branch.incarnation), layout.images(checkpoint_id)
    with timeline.step("quiesce"):
        quiesce()

    def capture_files() -> None:
        with timeline.step("files"):
            platform.layers.capture(layer, layout.checkpoint_layer(checkpoint_id))
        refill_terminals(branch.init_pid)

    try:
        with timeline.step("dump"), platform.criu_work(branch.session_id, checkpoint_id) as work:
            statistics = platform.criu.dump(
                branch.init_pid,
                images=images,
                work=work,
                root=layout.mount(branch.incarnation),
                external=external_mounts(base, None),
                hold=hold,
                on_stopped=lambda: empty_terminals(branch.init_pid),
                on_saved=capture_files,
            )
    except CriuFailed as error:
        where = f"branch {branch.name!r} of session {branch.session_id}"
        if _NO_SPACE in error.reason:
            raise OSError(errno.ENOSPC, _NO_SPACE, os.fspath(images)) from error
        obstacles = find_obstacles(platform.cgroup(branch.incarnation))
        reason = f"{'; '.join(obstacles)} [{error.reason}]" if obstacles else error.reason
        raise DumpFailed(where, reason, error.log_file) from error
    timeline.note("pause", statistics.pause_ms)
    return _size(images)


def resume_input(branch: BranchRecord) -> None:
    """Type again what a checkpoint that was cut off has taken out of the terminals. Done already is fine."""
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


def _size(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(directory))
