"""The parts of a live branch on the host: its layer, its mounts, its cgroup and that of its network.

All of them are named by the *incarnation*, a random id, so two incarnations never share anything and a new
one can be built next to the one it will replace. :func:`destroy` removes whatever of it exists; recovery
needs only the id.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from waypoint.engine.branch_walls import root_flags
from waypoint.engine.extra_mounts import mount_extra
from waypoint.engine.limits import remove_limits
from waypoint.engine.platform import Platform
from waypoint.engine.shares import remove_shares
from waypoint.errors import BaseGone, BaseMountGone
from waypoint.kernel.storage.mounts import detach_all, mount_overlay, read_mounts
from waypoint.model import SessionRecord

__all__ = ["destroy", "mount_root", "require_base"]


def require_base(platform: Platform, session: SessionRecord) -> None:
    """Raise BaseGone if the base no longer exists, BaseMountGone if a file system of it is not mounted.

    An overlay would take the empty mount point as its lower directory: files of the session would be missing, and no
    error would say so. It would also follow a link put where the base was, whose path had no links, to other files.
    """
    path = session.base.path
    is_in_place = platform.layout.is_stored_base(path) or os.path.realpath(path) == os.fspath(path)
    if not path.is_dir() or not is_in_place:
        raise BaseGone(session.name or session.id, os.fspath(path))
    if session.base.extra_mounts:
        mounted = {entry.path for entry in read_mounts()}
        gone = [extra.path for extra in session.base.extra_mounts if extra.path not in mounted]
        if gone:
            raise BaseMountGone(session.name or session.id, gone)


def mount_root(
    platform: Platform, session: SessionRecord, incarnation: str, mount_points: Mapping[str, str]
) -> Path:
    """Mount the branch's root: base below, layer above; then each extra mount inside it."""
    layer = platform.layout.layer(incarnation)
    root = platform.layout.mount(incarnation)
    root.mkdir(parents=True, exist_ok=True)
    mount_overlay(session.base.path, layer / "upper", layer / "work", root, root_flags(session))
    mount_extra(platform, session, incarnation, root, mount_points)
    return root


def destroy(platform: Platform, incarnation: str) -> None:
    """Kill an incarnation's processes and remove its mounts and its layer. Done already, in part or whole, is fine."""
    platform.network_cgroup(incarnation).begin_kill()
    platform.cgroup(incarnation).remove()
    remove_limits(platform, incarnation)
    root = platform.layout.mount(incarnation)
    detach_all(root)  # a lazy unmount takes the mounts below along
    if os.path.lexists(root):
        root.rmdir()
    remove_shares(platform, incarnation)
    platform.layers.delete(platform.layout.layer(incarnation))
    platform.network_cgroup(incarnation).remove()  # last: it ends meanwhile
