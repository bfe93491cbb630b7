"""The pool: the storage that holds bases, branches and checkpoints.

Three kinds, best first, chosen once from what the host can do, reported to the user and recorded in
``pool.json``; never switched afterwards:

``btrfs-native``
    The state directory is on a btrfs that is not the root's: the pool is a subvolume of it.
``btrfs-loop``
    A sparse file with its own btrfs on a loop device, mounted at ``<state>/pool``. Being another file system
    than ``/``, it lets an overlay use the host's own root as its lower layer.
``directory``
    A plain directory, for hosts without btrfs or loop devices. Checkpoints then copy files.

Why the loop file is used as it is: docs/adr/0002-pool-loop-file.md.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waypoint.errors import AbilityMissing, Busy, NotPermitted, PoolNotReady, StoreError
from waypoint.kernel.in_use import mount_holders, processes_below
from waypoint.kernel.storage.loop import attached_loop, find_loop, refresh_capacity
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.kernel.storage.pool_filesystem import (
    btrfs_uuid,
    grow_btrfs,
    make_btrfs,
    make_sparse_file,
    read_superblock,
)
from waypoint.kernel.storage.subvolumes import create_subvolume
from waypoint.kernel.syscalls import MS_NOATIME, MS_NODEV, MS_NOSUID, mount, unmount
from waypoint.store.lock import locked
from waypoint.store.pool_record import Pool, PoolKind, read_record, record_path, write_record

__all__ = [
    "Pool",
    "PoolKind",
    "PoolUsage",
    "create_pool",
    "open_pool",
    "pool_usage",
    "resize_pool",
    "unmount_pool",
]

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

LABEL = "waypoint-pool"
DEFAULT_SIZE_BYTES = 64 << 30
DEFAULT_SHARE_OF_FREE_SPACE = 0.8
MIN_SIZE_BYTES = 256 << 20  # btrfs itself asks for 109 MiB; below this a checkpoint does not fit
# Nothing of a branch is run from the pool's own mount: set-user-id files and device nodes made inside a
# branch work in its overlay and are dead here.
MOUNT_FLAGS = MS_NOATIME | MS_NOSUID | MS_NODEV
MOUNT_OPTIONS = "discard=async"  # gives the space of deleted checkpoints back to the host
DIRECT_IO = True
RELEASE_TIMEOUT_S = 2.0  # a scanner such as udev may hold the device a moment after the unmount
CLOSE_TIMEOUT_S = (
    30.0  # the kernel may have to write out much before it releases a pool that nobody uses any more
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """Sizes in bytes. Free is what can really be written: a sparse file is also bounded by its host."""

    total_bytes: int
    used_bytes: int
    free_bytes: int


def create_pool(state_dir: Path, *, size_bytes: int | None = None, progress: Progress) -> Pool:
    """Make the pool of ``state_dir``, or open the one that is there.

    A run that was cut short is continued by the next one; a pool is never formatted again.
    """
    if os.geteuid() != 0:
        raise NotPermitted("making the storage pool needs root", hint="run: sudo waypoint setup")
    state_dir.mkdir(parents=True, exist_ok=True)
    with _locked(state_dir):
        pool = read_record(state_dir)
        if pool is None:
            pool = _make(state_dir, size_bytes, progress)
            write_record(pool)
            progress(f"pool: {_describe(pool)}")
        elif size_bytes is not None and pool.size_bytes is not None and size_bytes != pool.size_bytes:
            progress(f"pool: exists with {pool.size_bytes} bytes; to change its size: waypoint pool resize")
        _mount_if_needed(pool)
    return pool


def open_pool(state_dir: Path) -> Pool:
    """The pool of ``state_dir``; a loop pool is mounted again if a reboot has unmounted it.

    Raises PoolNotReady if none was made. Costs two stat calls and one small read when all is well.
    """
    pool = read_record(state_dir)
    if pool is None:
        raise PoolNotReady(f"no storage pool in {state_dir}", hint="run: waypoint setup")
    if not _is_mounted(pool):
        with _locked(state_dir):
            _mount_if_needed(pool)
    return pool


def resize_pool(pool: Pool, size_bytes: int) -> Pool:
    """Grow a loop pool to ``size_bytes`` while it is in use. Returns the pool as it is then.

    Raises StoreError, with nothing changed, for a smaller size or a pool that has no size of its own.
    """
    if pool.kind is not PoolKind.LOOP:
        raise StoreError(
            f"a pool of kind {pool.kind} has no size of its own",
            hint=f"it can use all the space of the file system that holds {pool.state_dir}",
        )
    with _locked(pool.state_dir):
        current = pool.image.stat().st_size
        if size_bytes < current:
            used = pool_usage(pool).used_bytes
            raise StoreError(
                f"cannot shrink the pool from {current} to {size_bytes} bytes ({used} are in use)",
                hint="a pool can only grow; what is unused in its file takes no space on the host",
            )
        os.truncate(pool.image, size_bytes)
        device = find_loop(pool.image)
        if device is None:
            raise StoreError(f"no loop device serves {pool.image}", hint="run: waypoint setup")
        refresh_capacity(device)
        grow_btrfs(pool.root)
        grown = replace(pool, size_bytes=size_bytes)
        write_record(grown)
    return grown


def unmount_pool(state_dir: Path) -> None:
    """Unmount a loop pool and free its device; done already is fine, other kinds have nothing to unmount.

    Raises Busy, with the pool mounted as before, while a branch or another process uses it.
    """
    pool = read_record(state_dir)
    if pool is None or pool.kind is not PoolKind.LOOP:
        return
    with _locked(state_dir):
        devices = _devices(pool)
        while _is_mounted(pool):
            try:
                unmount(pool.root)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    raise _in_use(pool) from error
                raise
        # The overlay of a live branch keeps the file system alive without keeping its mount point busy, and
        # so does a mount namespace that was made while it was mounted.
        if not _wait_until_released(pool, devices):
            _mount_if_needed(pool)
            raise _in_use(pool)


def _in_use(pool: Pool) -> Busy:
    root = os.fspath(pool.root)
    holders = [*processes_below([root]), *(one for device in _devices(pool) for one in mount_holders(device))]
    if not holders:
        hint = "end its sessions first: waypoint list, waypoint cleanup"
    else:
        hint = "it can be unmounted when these have ended: " + "; ".join(
            f"pid {holder.pid} ({holder.name}) {holder.what}" for holder in holders
        )
    return Busy(f"the pool at {root} is in use", hint=hint)


def _devices(pool: Pool) -> list[str]:
    """The devices that it is mounted from, numbered as in mountinfo; empty if it is not mounted."""
    root = os.fspath(pool.root)
    return [mount.device for mount in read_mounts() if mount.path == root]


def pool_usage(pool: Pool) -> PoolUsage:
    """How full the pool is."""
    own = os.statvfs(pool.root)
    free = own.f_bavail * own.f_frsize
    if pool.kind is PoolKind.LOOP:
        host = os.statvfs(pool.state_dir)
        free = min(free, host.f_bavail * host.f_frsize)
    return PoolUsage(
        total_bytes=own.f_blocks * own.f_frsize,
        used_bytes=(own.f_blocks - own.f_bfree) * own.f_frsize,
        free_bytes=free,
    )


def _make(state_dir: Path, size_bytes: int | None, progress: Progress) -> Pool:
    native = _make_native(state_dir)
    if native is not None:
        return native
    directory = Pool(state_dir=state_dir, kind=PoolKind.DIRECTORY)
    if directory.image.exists():  # an earlier run got this far: never formatted again, never given up
        return _adopt_loop(state_dir)
    if directory.root.is_dir() and any(directory.root.iterdir()):
        return directory
    _format_image(directory.image, size_bytes, progress)
    pool = _adopt_loop(state_dir)
    try:
        _mount_if_needed(pool)
    except (AbilityMissing, OSError) as error:
        pool.image.unlink()
        # ENODEV: no btrfs in this kernel. EPERM, EACCES: no loop devices for this container.
        if isinstance(error, OSError) and error.errno not in (errno.ENODEV, errno.EPERM, errno.EACCES):
            raise
        progress(f"pool: no btrfs on a loop device here ({error}); checkpoints will copy changed files")
        directory.root.mkdir(mode=0o700, exist_ok=True)
        return directory
    return pool


def _make_native(state_dir: Path) -> Pool | None:
    identity = btrfs_uuid(state_dir)
    # An overlay over the host's root refuses an upper directory that lies inside its lower layer.
    if identity is None or identity == btrfs_uuid(Path("/")):
        return None
    pool = Pool(state_dir=state_dir, kind=PoolKind.NATIVE, uuid=identity)
    if not pool.root.exists():
        create_subvolume(pool.root)
        pool.root.chmod(0o700)
    return pool


def _format_image(image: Path, size_bytes: int | None, progress: Progress) -> None:
    size = _default_size(image.parent) if size_bytes is None else size_bytes
    if size < MIN_SIZE_BYTES:
        raise StoreError(f"{size} bytes are too few for a pool", hint=f"at least {MIN_SIZE_BYTES} are needed")
    progress(f"pool: formatting a sparse file of {size / (1 << 30):.1f} GiB")
    fresh = image.with_name(image.name + ".new")
    make_sparse_file(fresh, size)
    make_btrfs(fresh, LABEL)
    os.replace(fresh, image)


def _adopt_loop(state_dir: Path) -> Pool:
    image = state_dir / "pool.img"
    superblock = read_superblock(image)
    if superblock is None or superblock.label != LABEL:
        raise StoreError(
            f"{image} is not a pool of Waypoint", hint="move the file away and run: waypoint setup"
        )
    return Pool(
        state_dir=state_dir,
        kind=PoolKind.LOOP,
        size_bytes=image.stat().st_size,
        uuid=superblock.uuid,
        mount_options=MOUNT_OPTIONS,
        direct_io=DIRECT_IO,
    )


def _default_size(state_dir: Path) -> int:
    host = os.statvfs(state_dir)
    share = int(host.f_bavail * host.f_frsize * DEFAULT_SHARE_OF_FREE_SPACE)
    return min(DEFAULT_SIZE_BYTES, share) & ~0xFFFFF


def _is_mounted(pool: Pool) -> bool:
    """Whether the pool can be used now. Reads no mount table: it is asked before every operation."""
    try:
        inside = pool.root.stat().st_dev
    except FileNotFoundError:
        return False
    return pool.kind is not PoolKind.LOOP or inside != pool.state_dir.stat().st_dev


def _mount_if_needed(pool: Pool) -> None:
    """The caller holds the pool's lock."""
    if _is_mounted(pool):
        return
    if pool.kind is not PoolKind.LOOP:
        raise StoreError(
            f"the pool directory {pool.root} no longer exists", hint=f"remove {record_path(pool.state_dir)}"
        )
    if not pool.image.exists():
        raise StoreError(
            f"the pool's file {pool.image} no longer exists",
            hint=f"put it back or remove {record_path(pool.state_dir)}",
        )
    pool.root.mkdir(mode=0o700, exist_ok=True)
    # Another mount namespace may have it mounted. The same device must serve both: btrfs refuses to mount
    # a second device that carries the same identity.
    device = find_loop(pool.image)
    if device is not None:
        try:
            _mount(device, pool)
            return
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.EIO):  # freed in the meantime
                raise
    with attached_loop(pool.image, direct_io=pool.direct_io) as device:
        _mount(device, pool)
    log.info("mounted pool %s from %s", pool.root, device)


def _mount(device: Path, pool: Pool) -> None:
    mount(os.fspath(device), pool.root, "btrfs", MOUNT_FLAGS, pool.mount_options)
    pool.root.chmod(0o700)


def _wait_until_released(pool: Pool, devices: Sequence[str]) -> bool:
    began = time.monotonic()
    while find_loop(pool.image) is not None:
        waited = time.monotonic() - began
        if waited > CLOSE_TIMEOUT_S or (waited > RELEASE_TIMEOUT_S and _is_in_use(pool, devices)):
            return False
        time.sleep(0.01)  # the kernel has no event for this
    return True


def _is_in_use(pool: Pool, devices: Sequence[str]) -> bool:
    """Whether a branch is mounted, or another mount namespace shows the pool."""
    state_dir = f"{pool.state_dir}/"
    return any(mount.path.startswith(state_dir) for mount in read_mounts()) or any(
        map(mount_holders, devices)
    )


def _locked(state_dir: Path) -> locked:
    """Held while a process makes, mounts, grows or unmounts the pool."""
    return locked(state_dir / "pool.lock", what="the pool")


def _describe(pool: Pool) -> str:
    if pool.size_bytes is None:
        return f"{pool.kind} at {pool.root}"
    return f"{pool.kind} of {pool.size_bytes / (1 << 30):.1f} GiB at {pool.root}"
