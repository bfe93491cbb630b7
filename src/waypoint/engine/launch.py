"""Start a branch from nothing but its base, or from the files of a checkpoint."""

import os

from waypoint.engine.branch_network import network_made
from waypoint.engine.branch_walls import launcher_options
from waypoint.engine.extra_mounts import add_mount_layers, saved_mount_points
from waypoint.engine.incarnation import mount_root, require_base
from waypoint.engine.limits import BranchLimits
from waypoint.engine.name_files import HOSTNAME, write_name_files
from waypoint.engine.platform import Platform
from waypoint.engine.shares import note_shares, shares_attached, shares_staged
from waypoint.engine.skeleton import renew_skeleton, write_skeleton
from waypoint.kernel.processes.launcher import start_branch
from waypoint.log import Timeline
from waypoint.model import CheckpointRecord, SessionRecord

__all__ = ["launch"]


def launch(
    platform: Platform,
    session: SessionRecord,
    incarnation: str,
    timeline: Timeline,
    *,
    files_of: CheckpointRecord | None = None,
) -> int:
    """Make the files, mounts and namespaces of a new branch, start our init in it, return its host pid.

    With ``files_of`` its files are those of that checkpoint. On failure parts of the incarnation may exist: the
    caller destroys it.
    """
    layout = platform.layout
    require_base(platform, session)
    with timeline.step("files" if files_of else "layer"):
        if files_of is None:
            numbers = layout.inode_numbers if layout.is_stored_base(session.base.path) else None
            platform.layers.create(layout.layer(incarnation), numbers)
            add_mount_layers(platform, session, incarnation)
            write_skeleton(platform, session, incarnation)
            write_name_files(platform, session, incarnation)
        else:
            platform.layers.materialize(layout.checkpoint_layer(files_of.id), layout.layer(incarnation))
            renew_skeleton(platform, incarnation)
    with timeline.step("mount"):
        mount_points = saved_mount_points(platform, session, None if files_of is None else files_of.id)
        root = mount_root(platform, session, incarnation, mount_points)
    with (
        shares_staged(platform, session, incarnation, timeline) as shares,
        timeline.step("start"),
        network_made(platform, session, incarnation) as network,
        shares_attached(shares, root),
    ):
        limits = BranchLimits(platform, session.settings.limits, incarnation)
        groups = limits.make_groups()
        limits.impose(checkpoint=None if files_of is None else files_of.id)
        limits.impose_last()
        pid = start_branch(
            (
                *(os.fspath(platform.criu.launcher), "branch"),
                *("--root", os.fspath(root), *(f"--cgroup={group}" for group in groups)),
                *("--hostname", HOSTNAME, "--net", str(network.fd)),
                *(("--allow-self",) if session.settings.allow_self else ()),
                *launcher_options(session),
            ),
            pass_fds=(network.fd,),
        )
        network.await_ready()
        note_shares(platform, incarnation, shares, pid)
        return pid
