"""What a branch shares with the host and no checkpoint contains: volumes and secrets.

For a launch or a restore each is mounted on the host with all its attributes, in a directory of the
incarnation. From there a copy of the mount goes into the branch: at a launch by us, at a restore by CRIU,
to which it is *external*. Then the mounts on the host are removed: only the branch has them, and the host's
view of its root does not show them.

Inside, programs may rename the directories above a mount point. So the kernel's numbers of the mounts are
written down while nothing runs in the branch yet, and a checkpoint asks where they are now.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.errors import ShareUnavailable
from waypoint.kernel.copy.confined import Root, closing, directory_root, naming, status_of
from waypoint.kernel.storage.mounts import MountEntry, detach_all, read_mounts
from waypoint.kernel.syscalls import (
    MNT_DETACH,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    RESOLVE_NO_SYMLINKS,
    clone_mount,
    mount,
    move_mount,
    openat2,
    set_mount_attributes,
    unmount,
)
from waypoint.log import Timeline
from waypoint.model import Secret, SessionRecord, Volume

__all__ = [
    "SECRETS",
    "Share",
    "find_shares",
    "is_reserved",
    "note_shares",
    "read_secret",
    "remove_shares",
    "restore_hint",
    "shares_attached",
    "shares_staged",
]

SECRETS = "/run/secrets"
SECRET_BYTES_MAX = 1 << 20
_RESERVED = ("/proc", "/sys", "/dev", "/.waypoint")  # what a branch is made of: nothing is mounted over it
_SECRETS_KEY = "secrets"
_NOTE = "mounts.json"
_ELSEWHERE = "choose another path in the session"
_HARDENED = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV


@dataclass(frozen=True, slots=True)
class Share:
    """A volume, or all secrets, for ``path`` in a branch; the host has it at ``staged``, CRIU calls it ``key``."""

    key: str
    path: str
    staged: Path


def is_reserved(path: str) -> bool:
    """Whether nothing may be mounted at a path of a branch."""
    return path == "/" or any(path == tree or path.startswith(f"{tree}/") for tree in _RESERVED)


@contextmanager
def shares_staged(
    platform: Platform, session: SessionRecord, incarnation: str, timeline: Timeline
) -> Iterator[Sequence[Share]]:
    """Mount volumes and secrets on the host for the length of the block.

    Raises ShareUnavailable for one that cannot be shared. If the block is cut off, remove_shares() unmounts them.
    """
    settings, directory = session.settings, platform.layout.shared(incarnation)
    keys = [(f"volume-{number}", volume.path) for number, volume in enumerate(settings.volumes)]
    if settings.secrets:
        keys.append((_SECRETS_KEY, SECRETS))
    if not keys:
        yield ()
        return
    directory.mkdir(mode=0o700, parents=True)
    shares = [Share(key, path, directory / key) for key, path in keys]
    try:
        with timeline.step("share"):
            for share, volume in zip(shares, settings.volumes, strict=False):
                _stage_volume(volume, share.staged)
            if settings.secrets:
                _stage_secrets(settings.secrets, shares[-1].staged)
        yield shares
    finally:
        for share in shares:
            _remove(share.staged)


@contextmanager
def shares_attached(shares: Sequence[Share], root: Path) -> Iterator[None]:
    """Mount the shares, for the length of the block, in the root of a new branch, as the host has that mounted.

    A process that enters a mount namespace of its own in the block keeps them.
    """
    with ExitStack() as stack:
        inside = stack.enter_context(directory_root(root, ""))
        taken: list[str] = []
        for share in sorted(shares, key=lambda share: share.path.count("/")):  # the outer one first
            stack.enter_context(_attached(share, inside, root, taken))
        yield


def note_shares(platform: Platform, incarnation: str, shares: Sequence[Share], init_pid: int) -> None:
    """Write down which mounts of a branch are which shares. Nothing may run in it yet."""
    if not shares:
        return
    ours = {entry.path: entry for entry in read_mounts()}
    theirs = read_mounts(init_pid)
    noted: dict[str, int] = {}
    for share in shares:
        staged = ours[os.fspath(share.staged)]
        same = [entry for entry in theirs if _shows_same(entry, staged) and entry.id not in noted.values()]
        if same:  # else programs without walls have unmounted it
            # Several may show the same in the same way: take the one at its path; if that was moved, any other will do.
            noted[share.key] = max(same, key=lambda entry: entry.path == share.path).id
    (platform.layout.shared(incarnation) / _NOTE).write_text(json.dumps(noted))


def find_shares(platform: Platform, incarnation: str, init_pid: int) -> dict[str, str]:
    """Where the shares are in a running branch: the key of each by its mount point."""
    note = platform.layout.shared(incarnation) / _NOTE
    if not note.exists():
        return {}
    mount_points = {entry.id: entry.path for entry in read_mounts(init_pid)}
    noted: dict[str, int] = json.loads(note.read_text())
    return {mount_points[number]: key for key, number in noted.items() if number in mount_points}


def remove_shares(platform: Platform, incarnation: str) -> None:
    """Unmount all that is left on the host of the shares of an incarnation. Done already is fine."""
    directory = platform.layout.shared(incarnation)
    if directory.exists():
        for mount_point in directory.iterdir():
            _remove(mount_point)
        directory.rmdir()


def restore_hint(session: SessionRecord, reason: str) -> str:
    """A hint for a restore that CRIU refused because of a volume; empty if it had another reason."""
    settings = session.settings
    if settings.volumes and "lock!" in reason:
        return "a saved process held a lock on a file of a volume, and another one holds it now: end that one"
    for volume in settings.volumes:
        # CRIU leaves the first slash out.
        if re.search(rf" {re.escape(volume.path.lstrip('/'))}(/| |:|$)", reason):
            return (
                f"{volume.path} is the volume {volume.source} and in no checkpoint: files that were open on it"
                " must exist, and those that were mapped must be unchanged"
            )
    return ""


def read_secret(secret: Secret) -> bytes:
    """The content of a secret as it is now. Raises ShareUnavailable."""
    try:
        fd = os.open(secret.source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ShareUnavailable(_secret_label(secret), str(error.strerror)) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ShareUnavailable(_secret_label(secret), "it is not a regular file")
        content = b""
        while len(content) <= SECRET_BYTES_MAX and (chunk := os.read(fd, SECRET_BYTES_MAX + 1)):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > SECRET_BYTES_MAX:
        raise ShareUnavailable(_secret_label(secret), f"it has more than {SECRET_BYTES_MAX} bytes")
    return content


def _remove(mount_point: Path) -> None:
    detach_all(mount_point)
    # Only an empty directory or a file of ours: if it is still mounted, the kernel refuses.
    if mount_point.is_dir():
        mount_point.rmdir()
    else:
        mount_point.unlink(missing_ok=True)


def _stage_volume(volume: Volume, mount_point: Path) -> None:
    try:
        # The path had no links when the session was created. A link that was made since may lead anywhere.
        with closing(openat2(-1, volume.source, os.O_PATH, RESOLVE_NO_SYMLINKS)) as found:
            copy = clone_mount(found)
    except OSError as error:
        raise ShareUnavailable(f"volume {volume.source}:{volume.path}", str(error.strerror)) from error
    with closing(copy):
        if stat.S_ISDIR(os.fstat(copy).st_mode):
            mount_point.mkdir()
        else:
            mount_point.touch()
        set_mount_attributes(copy, _HARDENED | (MOUNT_ATTR_RDONLY if volume.read_only else 0))
        with closing(os.open(mount_point, os.O_PATH | os.O_CLOEXEC)) as target:
            move_mount(copy, target)
        set_mount_attributes(copy, 0)  # private again: moved below a shared mount, it has become shared too


def _stage_secrets(secrets: tuple[Secret, ...], mount_point: Path) -> None:
    contents = [(secret.name, read_secret(secret)) for secret in secrets]
    mount_point.mkdir()
    mount("waypoint-secrets", mount_point, "ramfs", 0, "mode=755")  # unlike tmpfs it is never swapped out
    for name, content in contents:
        (mount_point / name).write_bytes(content)
        (mount_point / name).chmod(0o444)
    # A mount becomes read-only only if nobody has a file of it open for writing: a program that another thread is just
    # starting may still have inherited one. A copy of the mount has no writers.
    with (
        closing(os.open(mount_point, os.O_PATH | os.O_CLOEXEC)) as mounted,
        closing(clone_mount(mounted)) as copy,
    ):
        set_mount_attributes(copy, _HARDENED | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY)
        unmount(mount_point, MNT_DETACH)
        with closing(os.open(mount_point, os.O_PATH | os.O_CLOEXEC)) as target:
            move_mount(copy, target)
        set_mount_attributes(copy, 0)  # as above


@contextmanager
def _attached(share: Share, inside: Root, root: Path, taken: list[str]) -> Iterator[None]:
    with closing(os.open(share.staged, os.O_PATH | os.O_CLOEXEC)) as staged:
        copy = clone_mount(staged)
    with closing(copy):
        is_directory = stat.S_ISDIR(os.fstat(copy).st_mode)
        with closing(_open_mount_point(share, inside, root, taken, is_directory=is_directory)) as target:
            move_mount(copy, target)
        try:
            yield
        finally:
            unmount(f"/proc/self/fd/{copy}", MNT_DETACH)


def _open_mount_point(share: Share, inside: Root, root: Path, taken: list[str], *, is_directory: bool) -> int:
    """Open what is at the share's path, made if it is missing. ``taken`` are the real paths of the shares before it."""
    parts = share.path.split("/")[1:]
    at = inside.open("/", os.O_PATH)
    try:
        for count, name in enumerate(parts, 1):
            path = "/" + "/".join(parts[:count])
            with naming(share.path):
                try:
                    below = inside.open(path, os.O_PATH)
                except FileNotFoundError:
                    _make(at, name, share, _real_path(at, root), taken, is_directory or count < len(parts))
                    below = inside.open(path, os.O_PATH)
            at, above = below, at
            os.close(above)
        real = _real_path(at, root)
        if is_reserved(real) or real in taken:
            raise ShareUnavailable(
                share.path, f"it leads to {real}, where nothing can be mounted", hint=_ELSEWHERE
            )
        if stat.S_ISDIR(os.fstat(at).st_mode) != is_directory:
            there, shared = ("a file", "a directory") if is_directory else ("a directory", "a file")
            raise ShareUnavailable(
                share.path, f"it is {there} in the base, but {shared} is to be mounted", hint=_ELSEWHERE
            )
        taken.append(real)
        return at
    except BaseException:
        os.close(at)
        raise


def _make(at: int, name: str, share: Share, where: str, taken: list[str], is_directory: bool) -> None:
    if any(where == other or where.startswith(f"{other}/") for other in taken):
        raise ShareUnavailable(
            share.path,
            f"{name!r} does not exist on the volume at {where}, and nothing is made there",
            hint=_ELSEWHERE,
        )
    if status_of(at, name) is not None:
        raise ShareUnavailable(
            share.path, f"{name!r} in the base is a link that leads nowhere", hint=_ELSEWHERE
        )
    if is_directory:
        os.mkdir(name, dir_fd=at)
        os.chmod(name, 0o755, dir_fd=at)  # whatever the umask is
    else:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=at))


def _real_path(fd: int, root: Path) -> str:
    """The path in the branch, without links, of what a descriptor refers to."""
    return os.readlink(f"/proc/self/fd/{fd}").removeprefix(os.fspath(root)) or "/"


def _shows_same(one: MountEntry, other: MountEntry) -> bool:
    return (one.device, one.root, one.is_read_only) == (other.device, other.root, other.is_read_only)


def _secret_label(secret: Secret) -> str:
    return f"secret {secret.name}={secret.source}"
