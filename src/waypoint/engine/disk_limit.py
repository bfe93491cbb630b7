"""The space that the changed files of a branch may take in the pool.

The kernel keeps an account for each layer (:mod:`waypoint.kernel.storage.quota`), but of what *that incarnation* has
written, wherever it is still held: a restored layer starts with an empty account, and what was deleted since a
checkpoint stays on it. So the limit is kept as *room*: how much the account may still grow. A checkpoint carries the
room that was left; a restore or fork goes on with it. Room is never too large. It is too small once
something was deleted that a checkpoint holds: when little is left, the files are counted anew (:func:`count_anew`).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from waypoint.errors import AbilityMissing
from waypoint.kernel.cgroup.freezer import Freezer
from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.kernel.storage.quota import (
    Account,
    enable_simple_quotas,
    has_simple_quotas,
    kernel_has_simple_quotas,
)
from waypoint.kernel.storage.subvolumes import delete_subvolume, snapshot_subvolume
from waypoint.kernel.storage.unnamed_files import unnamed_bytes
from waypoint.kernel.syscalls import sync_file_system
from waypoint.store.layout import Layout
from waypoint.store.pool import PoolKind, open_pool

__all__ = [
    "count_anew",
    "forget_count",
    "give_room",
    "keep_room",
    "require_accounts",
    "room_of",
    "saved_room",
]

COUNT_TIMEOUT_S = 600.0
COUNTED_BELOW = 0.25  # of the limit: with more room than that left, nobody needs to know it exactly
BYTES_PER_FILE = 512  # what names and properties of a file take in the metadata, at least


def require_accounts(layout: Layout) -> None:
    """Let the pool keep accounts. Raises AbilityMissing where it cannot."""
    pool = open_pool(layout.state_dir)
    if pool.kind is PoolKind.DIRECTORY:
        raise AbilityMissing(
            "a disk limit needs a pool on btrfs, and this one is a plain directory",
            hint="leave out --disk, or set up a state directory on a host with btrfs or loop devices",
        )
    if has_simple_quotas(pool.root):
        return
    if not kernel_has_simple_quotas():
        raise AbilityMissing(
            "a disk limit needs simple quotas of btrfs, which this kernel lacks",
            hint="boot a kernel >= 6.7, or leave out --disk",
        )
    if pool.kind is PoolKind.NATIVE:
        # It changes the format of the whole file system, which is not ours alone.
        raise AbilityMissing(
            f"a disk limit needs simple quotas on the btrfs that holds {pool.root}",
            hint=f"enable them: btrfs quota enable --simple {pool.root}",
        )
    enable_simple_quotas(pool.root)


def give_room(layer: Path, room: int) -> None:
    """From now on the layer may take so much more."""
    account = Account.of(layer)
    account.set_maximum(account.taken() + room)


def room_of(layer: Path) -> int:
    """How much more the layer, which has a limit, may take."""
    account = Account.of(layer)
    return max(0, (account.maximum() or 0) - account.taken())


def keep_room(layout: Layout, checkpoint_id: str, room: int) -> None:
    """Write down with a checkpoint what room was left."""
    layout.checkpoint_room(checkpoint_id).write_text(str(room))


def saved_room(layout: Layout, checkpoint_id: str, limit: int, layer: Path) -> int:
    """What room a branch has that starts from the checkpoint. Its processes, if any, are back, and stopped."""
    room = min(limit, int(layout.checkpoint_room(checkpoint_id).read_text()))
    if room > limit * COUNTED_BELOW:
        return room
    unnamed = Account.of(layer).taken()  # nothing else was written yet: deleted files that are open
    return max(room, limit - _size(layout.checkpoint_layer(checkpoint_id)) - unnamed)


def count_anew(
    layout: Layout,
    incarnation: str,
    limit: int,
    cgroup: Cgroup,
    *,
    hold: Sequence[int] = (),
    may_be_raised: bool = False,
) -> int:
    """Give a live layer all the room that its files leave of the limit, or what it has if that is more; return it.

    With ``may_be_raised`` what it has is not to be trusted. The caller holds the branch's lock, ``hold``. What is deleted
    stays on the account until the file system commits that, and longer if it is open: counted neither there nor among
    the files it would be given twice. So nothing of the branch runs while account and files are made to agree; the files
    are then counted in a snapshot.
    """
    layer, copy = layout.layer(incarnation), _copy_for_counting(layout, incarnation)
    account = Account.of(layer)
    delete_subvolume(copy)
    sync_file_system(layer)  # most of the work, while it still runs
    try:
        with Freezer(cgroup, hold) as freezer:
            if cgroup.is_populated():
                freezer.begin()
                freezer.wait()
            sync_file_system(layer)
            taken = account.taken()
            snapshot_subvolume(layer, copy, read_only=True)
            unnamed = _unnamed_bytes(layout.mount(incarnation), cgroup)
        room = limit - _size(copy) - unnamed  # less than nothing if it was raised for a while and made use of
    finally:
        delete_subvolume(copy)
    maximum = max(taken + room, 1 if may_be_raised else account.maximum() or 1)
    account.set_maximum(maximum)
    return max(0, maximum - account.taken())


def _unnamed_bytes(root: Path, cgroup: Cgroup) -> int:
    """What files of a stopped branch take that are open or mapped, and that have no name any more."""
    inside = f"{root}/"
    devices = {entry.device for entry in read_mounts() if f"{entry.path}/".startswith(inside)}
    return unnamed_bytes(cgroup.members() if cgroup.is_populated() else (), devices)


def forget_count(layout: Layout, incarnation: str) -> None:
    """Remove what a count that was cut off has left. Done already is fine."""
    copy = _copy_for_counting(layout, incarnation)
    if copy.exists():
        delete_subvolume(copy)


def _copy_for_counting(layout: Layout, incarnation: str) -> Path:
    return layout.layer(f"{incarnation}.count")


def _size(layer: Path) -> int:
    """What the files of a layer take: their content, and something for each in the metadata."""
    parts = [layer / "upper", *layer.glob("mounts/*/upper")]
    return _total(parts, "--block-size=1") + BYTES_PER_FILE * _total(parts, "--inodes")


def _total(parts: list[Path], unit: str) -> int:
    # Not a walk of our own: it knows files with several names, and trees too deep for a path.
    names = [os.fspath(part) for part in parts]
    counted = run_tool(("du", "--summarize", unit, "--", *names), timeout_s=COUNT_TIMEOUT_S)
    return sum(int(line.split("\t")[0]) for line in counted.stdout.splitlines())
