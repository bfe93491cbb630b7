"""Find the base that the user means: the host's root, a directory, or a base stored in the pool."""

import os
from collections.abc import Callable
from pathlib import Path

from waypoint.errors import NotFound, UsageError
from waypoint.kernel.copy.confined import directory_root, reopened
from waypoint.kernel.storage.mounts import MountEntry, read_mounts
from waypoint.model import Base, BaseKind, BaseRecord, ExtraMount
from waypoint.store.layout import Layout

__all__ = ["HOST", "find_stored", "is_root_file_system", "resolve_base"]

HOST = "host"
_HOST_ROOT = Path("/")
_OWN_TREES = ("/proc", "/sys", "/dev", "/run")  # a branch has its own
# Other kinds (a boot partition's vfat, network and FUSE mounts, a container's own overlay) are shared only
# when the session is to start there.
_DISK_FILE_SYSTEMS = frozenset("bcachefs btrfs ext2 ext3 ext4 f2fs jfs reiserfs xfs zfs".split())


def find_stored(base: str | Path | None, find: Callable[[str], BaseRecord]) -> BaseRecord | None:
    """The base of the pool that ``base`` means; None if it means the host's root or a directory."""
    text = "" if base is None else os.fspath(base)
    if isinstance(base, Path) or text in ("", HOST) or text.startswith(("/", "./", "../")):
        return None
    try:
        return find(text)
    except NotFound:
        if os.path.isdir(text) and os.path.sep in text:
            return None
        raise


def resolve_base(
    layout: Layout, workspace: str | Path | None, base: str | Path | None, stored: BaseRecord | None = None
) -> tuple[Base, str]:
    """The base, and the directory inside it where the shell starts."""
    if stored is None and (base is None or os.fspath(base) == HOST):
        start = _existing_directory(Path.cwd() if workspace is None else workspace)
        if base is None and is_root_file_system(start):
            return Base(kind=BaseKind.DIRECTORY, path=start), "/"
        return _host_base(layout, start), os.fspath(start)
    inside = "/" if workspace is None else os.fspath(workspace)
    if stored is not None:
        root = layout.base(stored.id)
        inside = inside if workspace is not None else stored.config.workdir or "/"
    else:
        root = _existing_directory(base or "")
        if not is_root_file_system(root):
            raise UsageError(f"{root} is not a root file system", hint="it needs at least bin/sh and etc")
    if not os.path.isabs(inside):
        raise UsageError(f"{inside!r} is not an absolute path", hint=f"say where in {root} the shell starts")
    if not _has_directory(root, inside):
        raise NotFound("directory", inside, hint=f"it must exist in {root}")
    return Base(kind=BaseKind.DIRECTORY, path=root), inside


def _has_directory(root: Path, path: str) -> bool:
    """Whether a root file system has a directory; its links are followed as they will be in a session."""
    try:
        with (
            directory_root(root) as top,
            top.found(path, follow=True) as found,
            reopened(found, os.O_PATH | os.O_DIRECTORY),
        ):
            return True
    except OSError:
        return False


def is_root_file_system(path: Path) -> bool:
    """Whether a directory looks like the root of a system: it has a shell and an ``etc``."""
    has_shell = any(os.path.lexists(path / shell) for shell in ("bin/sh", "usr/bin/sh"))
    return path != _HOST_ROOT and has_shell and (path / "etc").is_dir()


def _existing_directory(path: str | Path) -> Path:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{os.fspath(path)!a} is not valid UTF-8", hint="rename the directory") from error
    resolved = Path(path).resolve()
    if not os.fspath(path) or not resolved.is_dir():  # an empty path is not the current directory
        raise NotFound("directory", os.fspath(path), hint="give the path of a directory that exists")
    return resolved


def _host_base(layout: Layout, start: Path) -> Base:
    """The host's root. Its other file systems are not part of an overlay over ``/``: each gets one of its own."""
    if os.path.samefile(layout.pool, _HOST_ROOT) or _device(layout.pool) == _device(_HOST_ROOT):
        raise UsageError(
            "the pool is on the root file system, so the host's root cannot be a base",
            hint="use --base DIR, or a state directory on another file system",
        )
    mounts = read_mounts()
    chosen = [mount for mount in mounts if _is_extra_mount(mount, layout, start, mounts)]
    extra = tuple(ExtraMount(key=f"m{number}", path=mount.path) for number, mount in enumerate(chosen))
    return Base(kind=BaseKind.HOST, path=_HOST_ROOT, extra_mounts=extra)


def _is_extra_mount(mount: MountEntry, layout: Layout, start: Path, mounts: list[MountEntry]) -> bool:
    if mount.path == "/" or _is_below(mount.path, os.fspath(layout.state_dir)):
        return False
    if any((parent / "pool.json").exists() for parent in Path(mount.path).parents):
        return False  # it belongs to another state directory
    if any(_is_below(mount.path, own) for own in _OWN_TREES):
        if _is_below(os.fspath(start), mount.path) and mount is _mount_of(start, mounts):
            raise UsageError(
                f"{start} is on {mount.path}, which a session does not share with the host",
                hint="start the session in a directory on a disk",
            )
        return False
    if mount is _mount_of(start, mounts):
        return True
    return mount.fstype in _DISK_FILE_SYSTEMS and os.path.isdir(mount.path)


def _mount_of(path: Path, mounts: list[MountEntry]) -> MountEntry:
    """The mount that ``path`` is on: the deepest, and of several at one mount point the last."""
    return max(
        (mount for mount in mounts if _is_below(os.fspath(path), mount.path)),
        key=lambda mount: (len(mount.path), mounts.index(mount)),
    )


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _device(path: Path) -> int:
    return path.stat().st_dev
