"""Restore a checkpoint as a new incarnation, next to whatever runs already."""

import os
from contextlib import ExitStack
from pathlib import Path

from waypoint.engine.branch_network import network_made
from waypoint.engine.extra_mounts import saved_mount_points
from waypoint.engine.incarnation import mount_root, require_base
from waypoint.engine.limits import BranchLimits
from waypoint.engine.overlays import root_devices
from waypoint.engine.platform import Platform
from waypoint.engine.shares import note_shares, restore_hint, shares_staged
from waypoint.errors import RestoreFailed
from waypoint.kernel.criu.branch import restore_tree
from waypoint.kernel.criu.images import bound_ports
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.criu.terminals import refill_terminals
from waypoint.kernel.network.egress import silenced
from waypoint.kernel.network.ports_in_use import taken_ports
from waypoint.log import Timeline
from waypoint.model import CheckpointRecord, NetworkMode, SessionRecord

__all__ = ["restore_checkpoint"]


def restore_checkpoint(
    platform: Platform,
    session: SessionRecord,
    checkpoint: CheckpointRecord,
    incarnation: str,
    timeline: Timeline,
) -> int:
    """Restore files and processes of ``checkpoint`` as ``incarnation``; return the host pid of its init.

    On failure parts of the incarnation may exist: the caller destroys it.
    """
    layout = platform.layout
    require_base(platform, session)
    with network_made(platform, session, incarnation) as network:
        with timeline.step("files"):
            platform.layers.materialize(layout.checkpoint_layer(checkpoint.id), layout.layer(incarnation))
        with timeline.step("mount"):
            mount_points = saved_mount_points(platform, session, checkpoint.id)
            root = mount_root(platform, session, incarnation, mount_points)
        limits = BranchLimits(platform, session.settings.limits, incarnation)

        def begin() -> None:
            with timeline.step("network"):
                network.await_ready()
            # A connection that sends before the other end exists would be reset.
            silence.enter_context(silenced(platform.cgroup(incarnation).path))

        def before_any_runs(pid: int) -> None:
            silence.close()
            note_shares(platform, incarnation, shares, pid)
            refill_terminals(pid)
            limits.impose(checkpoint=checkpoint.id)

        try:
            with (
                ExitStack() as silence,
                shares_staged(platform, session, incarnation, timeline) as shares,
                timeline.step("processes"),
                platform.criu_work(checkpoint.session_id, incarnation) as work,
            ):
                pid = restore_tree(
                    platform.criu,
                    images=layout.images(checkpoint.id),
                    work=work,
                    root=root,
                    cgroups=limits.make_groups(),
                    network=network.fd,
                    close_connections=session.settings.network.mode is NetworkMode.HOST,
                    external=[
                        *(f"mnt[{key}]:{root}{mount_point}" for key, mount_point in mount_points.items()),
                        *(f"mnt[{share.key}]:{share.staged}" for share in shares),
                    ],
                    devices=lambda: root_devices(root, mount_points),
                    on_begin=begin,
                    on_restored=before_any_runs,
                )
                limits.impose_last()
                return pid
        except CriuFailed as error:
            reason = error.reason
            if session.settings.network.mode is NetworkMode.HOST:
                reason = _with_ports_taken(layout.images(checkpoint.id), reason)
            hint = restore_hint(session, error.reason)
            raise RestoreFailed(checkpoint.name, reason, error.log_file, hint=hint) from error


def _with_ports_taken(images: Path, reason: str) -> str:
    """Name the ports that are taken: CRIU does not say which, and where branches share the host's that is likely."""
    taken = sorted(bound_ports(images) & taken_ports(os.getpid()))
    if not taken:
        return reason
    ports = f"port {taken[0]}" if len(taken) == 1 else f"ports {', '.join(map(str, taken))}"
    return f"something else has {ports} of the host, which --net host shares: end it first [{reason}]"
