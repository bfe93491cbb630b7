"""Bring a checkpoint back to life as a new incarnation, beside whatever runs already."""

from waypoint.engine.incarnation import external_mounts, mount_root
from waypoint.engine.platform import Platform
from waypoint.errors import RestoreFailed
from waypoint.kernel.criu import CriuFailed
from waypoint.kernel.pty import refill_terminals
from waypoint.log import Timeline
from waypoint.model import Base, CheckpointRecord

__all__ = ["revive"]


def revive(
    platform: Platform, base: Base, checkpoint: CheckpointRecord, incarnation: str, timeline: Timeline
) -> int:
    """Restore files and processes of ``checkpoint`` as ``incarnation``; return the host pid of its init.

    On failure parts of the incarnation may exist: the caller destroys it.
    """
    layout = platform.layout
    with timeline.step("files"):
        platform.layers.materialize(layout.checkpoint_layer(checkpoint.id), layout.layer(incarnation))
    with timeline.step("mount"):
        root = mount_root(platform, base, incarnation)
    cgroup = platform.cgroup(incarnation)
    try:
        with timeline.step("processes"), platform.criu_work(checkpoint.session_id, incarnation) as work:
            cgroup.create()
            return platform.criu.restore(
                images=layout.images(checkpoint.id),
                work=work,
                root=root,
                cgroup=cgroup.path,
                external=external_mounts(base, root),
                on_restored=refill_terminals,
            )
    except CriuFailed as error:
        raise RestoreFailed(checkpoint.name, error.reason, error.log_file) from error
