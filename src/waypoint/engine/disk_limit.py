"""The space that the changed files of a branch may take in the pool.

The kernel keeps an account for each layer (:mod:`waypoint.kernel.storage.quota`), but of what *that incarnation* has
written, wherever it is still held: a restored layer starts with an empty account, and what was deleted since a
checkpoint stays on it. So the limit is kept as the *space left*: how much the account may still grow. A checkpoint
stores the space that was left; a restore or fork starts with it. The figure is never too large. It is too small once
something was deleted that a checkpoint holds: when little is left, the files are counted (:func:`recount_space_left`).
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
    "recount_space_left",
    "remove_count_copy",
    "require_accounts",
    "save_space_left",
    "saved_space_left",
    "set_space_left",
    "space_left",
]

COUNT_TIMEOUT_S = 600.0
COUNTED_BELOW = 0.25  # of the limit: while more than that is left, nobody needs to know it exactly
BYTES_PER_FILE = 512  # what names and properties of a file take in the metadata, at least


def require_accounts(layout: Layout) -> None:
    """Make the pool keep accounts. Raises AbilityMissing if it cannot."""
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


def set_space_left(layer: Path, space: int) -> None:
    """Let the layer take ``space`` more bytes than it has taken so far."""
    account = Account.of(layer)
    account.set_maximum(account.taken() + space)


def space_left(layer: Path) -> int:
    """How much more the layer, which has a limit, may take."""
    account = Account.of(layer)
    return max(0, (account.maximum() or 0) - account.taken())


def save_space_left(layout: Layout, checkpoint_id: str, space: int) -> None:
    """Save with a checkpoint how much of the disk limit was left."""
    layout.checkpoint_space_left(checkpoint_id).write_text(str(space))


def saved_space_left(layout: Layout, checkpoint_id: str, limit: int, layer: Path) -> int:
    """The space left for a branch that starts from the checkpoint. Its processes, if any, are restored and stopped."""
    space = min(limit, int(layout.checkpoint_space_left(checkpoint_id).read_text()))
    if space > limit * COUNTED_BELOW:
        return space
    unnamed = Account.of(layer).taken()  # nothing else was written yet: deleted files that are open
    return max(space, limit - _size(layout.checkpoint_layer(checkpoint_id)) - unnamed)


def recount_space_left(
    layout: Layout,
    incarnation: str,
    limit: int,
    cgroup: Cgroup,
    *,
    hold: Sequence[int] = (),
    may_be_raised: bool = False,
) -> int:
    """Count a live layer's files and give it all the space that they leave of the limit; return the space left.

    The layer keeps what it has if that is more; not with ``may_be_raised``, as its limit cannot be trusted then. The
    caller holds the branch's lock, ``hold``. A deleted file stays on the account until the file system commits, and
    longer if it is open: counted neither on the account nor among the files, its space would be given twice. So the
    branch is frozen while the account is read and a snapshot made; the files are then counted in the snapshot.
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
        space = limit - _size(copy) - unnamed  # negative if the limit was raised and that was used
    finally:
        delete_subvolume(copy)
    maximum = max(taken + space, 1 if may_be_raised else account.maximum() or 1)
    account.set_maximum(maximum)
    return max(0, maximum - account.taken())


def _unnamed_bytes(root: Path, cgroup: Cgroup) -> int:
    """The space of deleted files that a stopped branch still has open or mapped."""
    inside = f"{root}/"
    devices = {entry.device for entry in read_mounts() if f"{entry.path}/".startswith(inside)}
    return unnamed_bytes(cgroup.members() if cgroup.is_populated() else (), devices)


def remove_count_copy(layout: Layout, incarnation: str) -> None:
    """Remove the snapshot that a count left when it was cut off. Done already is fine."""
    copy = _copy_for_counting(layout, incarnation)
    if copy.exists():
        delete_subvolume(copy)


def _copy_for_counting(layout: Layout, incarnation: str) -> Path:
    return layout.layer(f"{incarnation}.count")


def _size(layer: Path) -> int:
    """The space that the files of a layer take: their content, and some metadata for each."""
    parts = [layer / "upper", *layer.glob("mounts/*/upper")]
    return _total(parts, "--block-size=1") + BYTES_PER_FILE * _total(parts, "--inodes")


def _total(parts: list[Path], unit: str) -> int:
    # du, not a walk of our own: it handles hard links, and trees too deep for a path.
    names = [os.fspath(part) for part in parts]
    counted = run_tool(("du", "--summarize", unit, "--", *names), timeout_s=COUNT_TIMEOUT_S)
    return sum(int(line.split("\t")[0]) for line in counted.stdout.splitlines())
