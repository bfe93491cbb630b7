"""Other file systems of the host, in a branch over the host's root: each gets an overlay of its own in the branch.

Inside, programs may rename the directories above such a mount, and put links where they were. So a checkpoint asks the
kernel where each mount is and saves that; a branch that starts from it gets them there, and no link is followed.
"""

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from waypoint.engine.branch_walls import root_flags
from waypoint.engine.platform import Platform
from waypoint.errors import EngineError
from waypoint.kernel.copy.confined import Root, closing, directory_root
from waypoint.kernel.storage.mounts import mount_overlay, read_mounts
from waypoint.kernel.syscalls import RESOLVE_NO_SYMLINKS
from waypoint.model import BranchRecord, SessionRecord

__all__ = [
    "add_mount_layers",
    "find_mount_points",
    "mount_extra",
    "mount_layers",
    "save_mount_points",
    "saved_mount_points",
]


def mount_layers(layer: Path) -> Path:
    """Where a layer has the changes to the extra mounts: for the key of each a directory ``upper`` and one ``work``."""
    return layer / "mounts"


def add_mount_layers(platform: Platform, session: SessionRecord, incarnation: str) -> None:
    """Make the directories in the layer that hold the changes to the base's extra mounts."""
    for extra in session.base.extra_mounts:
        for part in ("upper", "work"):
            (mount_layers(platform.layout.layer(incarnation)) / extra.key / part).mkdir(parents=True)


def mount_extra(
    platform: Platform, session: SessionRecord, incarnation: str, root: Path, mount_points: Mapping[str, str]
) -> None:
    """Mount each extra mount in the branch's root, which the host has at ``root``. Raises EngineError."""
    if not mount_points:
        return
    with directory_root(root, "", resolve=RESOLVE_NO_SYMLINKS) as inside:
        for extra in session.base.extra_mounts:
            parts = mount_layers(platform.layout.layer(incarnation)) / extra.key
            with closing(_open_mount_point(inside, extra.path, mount_points[extra.key])) as mount_point:
                target = Path(f"/proc/self/fd/{mount_point}")
                mount_overlay(Path(extra.path), parts / "upper", parts / "work", target, root_flags(session))


def find_mount_points(platform: Platform, branch: BranchRecord) -> dict[str, str]:
    """Where the extra mounts are in a running branch, each by its key."""
    directory = mount_layers(platform.layout.layer(branch.incarnation))
    if not directory.exists():
        return {}
    keys = "|".join(map(re.escape, os.listdir(directory)))
    # Recognised by the overlay's upper directory: all else about a mount can be the same for another one.
    upper = re.compile(rf"(?:^|,)upperdir=[^,]*/mounts/({keys})/upper(?:,|$)")
    return {
        found[1]: entry.path
        for entry in read_mounts(branch.init_pid)
        if entry.fstype == "overlay" and entry.root == "/" and (found := upper.search(entry.options))
    }


def save_mount_points(platform: Platform, branch: BranchRecord, checkpoint_id: str) -> None:
    """Save with a checkpoint where the extra mounts are. Nothing of the branch runs now."""
    if mount_points := find_mount_points(platform, branch):
        platform.layout.checkpoint_mounts(checkpoint_id).write_text(json.dumps(mount_points))


def saved_mount_points(
    platform: Platform, session: SessionRecord, checkpoint_id: str | None
) -> dict[str, str]:
    """Where a branch that starts from the checkpoint has its extra mounts; without one, where the host has them."""
    mount_points = {extra.key: extra.path for extra in session.base.extra_mounts}
    if checkpoint_id is not None:
        kept = platform.layout.checkpoint_mounts(checkpoint_id)
        mount_points |= json.loads(kept.read_text()) if kept.exists() else {}
    return mount_points


def _open_mount_point(inside: Root, path: str, mount_point: str) -> int:
    try:
        return inside.open(mount_point, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        reason = "a link is on the way there" if error.errno == errno.ELOOP else error.strerror
        raise EngineError(
            f"cannot mount what the host has at {path}: it belongs at {mount_point}, and {reason}",
            hint="if the session has changed that path, use an earlier checkpoint; else use a base of its own (--base DIR)",
        ) from error
