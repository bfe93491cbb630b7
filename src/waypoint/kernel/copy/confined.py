"""Reach files below a root by descriptor, so that no link leads out of it, whatever changes meanwhile.

The programs of a branch may swap a directory for a link at any moment, so we never check a path first and open it
afterwards. A path is walked once, by the kernel, which keeps it below the root
(``openat2``); every further step starts from a descriptor and follows no link.

Read next: :mod:`waypoint.kernel.copy.file_tree`, which copies from one descriptor to another.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import CopyFailed
from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_XDEV,
    file_system_type,
    openat2,
)

__all__ = [
    "Destination",
    "Root",
    "closing",
    "directory_root",
    "holds_secrets",
    "host_root",
    "is_directory",
    "is_mount_point",
    "is_of_the_kernel",
    "list_directory",
    "naming",
    "opened",
    "opened_directory",
    "process_root",
    "reopened",
    "status_of",
]

_CONFINED = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_TRIES = 100  # the kernel gives up on a path with `..` in it while something else is being renamed

# proc, sysfs, cgroup2, devpts, debugfs, tracefs, securityfs, bpf
_KERNEL_FILE_SYSTEMS = frozenset(
    {0x9FA0, 0x62656572, 0x63677270, 0x1CD1, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11}
)
_RAMFS = 0x858458F6


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to put something: at ``names``, one below the other, below an open directory.

    All names but the last are missing directories. Without names, the directory itself is meant.
    """

    directory: int
    names: tuple[str, ...]
    shown: str


@dataclass(frozen=True, slots=True)
class Root:
    """A directory from which absolute paths start; ``label`` goes before them in messages."""

    fd: int
    label: str
    resolve: int

    def shown(self, path: str) -> str:
        return f"{self.label}{path}"

    @contextmanager
    def found(self, path: str, *, follow: bool = False) -> Iterator[int]:
        """What is at ``path``, as a descriptor that only refers to it (O_PATH): the file itself is not opened."""
        with naming(self.shown(path)):
            fd = self.open(path, os.O_PATH if follow else os.O_PATH | os.O_NOFOLLOW)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def destination(self, path: str, *, into: str | None = None) -> Iterator[Destination]:
        """Where a copy to ``path`` goes. If a directory is there, it goes to the name ``into`` in it.

        A path that ends in a slash means a directory, and a link at its end is followed; otherwise a link
        there is what will be replaced.
        """
        parts = [part for part in path.split("/") if part not in ("", ".")]
        means_directory = path.endswith(("/", "/.", "/.."))
        last = [] if means_directory else [parts.pop()]
        with naming(self.shown(path)):
            directory, missing = self._open_deepest(parts)
            try:
                names = (*missing, *last)
                if not missing and last and is_directory(directory, last[0]):
                    outer, directory = directory, _open_directory(directory, last[0])
                    os.close(outer)
                    names, means_directory = (), True
                if not names and os.path.samestat(os.fstat(directory), os.fstat(self.fd)):
                    raise CopyFailed(
                        self.shown(path),
                        "a root cannot be the destination",
                        hint="name the file or directory to make in it",
                    )
                if is_of_the_kernel(directory):
                    raise CopyFailed(
                        self.shown(path), "nothing can be copied into a file system of the kernel"
                    )
            except BaseException:
                os.close(directory)
                raise
        if into is not None and means_directory:
            names, path = (*names, into), f"{path.rstrip('/')}/{into}"
        try:
            yield Destination(directory, names, self.shown(path))
        finally:
            os.close(directory)

    def _open_deepest(self, parts: list[str]) -> tuple[int, tuple[str, ...]]:
        """Open the deepest directory of a path that exists; return it, and the names that are missing below it."""
        for count in range(len(parts), -1, -1):
            try:
                found = self.open("/" + "/".join(parts[:count]), os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            missing = tuple(parts[count:])
            try:
                directory = _reopen(found, os.O_RDONLY | os.O_DIRECTORY)
            finally:
                os.close(found)
            if missing and (".." in missing or status_of(directory, missing[0]) is not None):
                os.close(directory)  # a broken link, or `..` below a missing directory
                break
            return directory, missing
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def open(self, path: str, flags: int) -> int:
        """Open what exists at ``path``; the descriptor is close-on-exec."""
        for _ in range(_TRIES):
            try:
                return openat2(self.fd, path, flags, self.resolve)
            except BlockingIOError:
                continue
        raise OSError(errno.EAGAIN, "directories in the path keep being renamed")


@contextmanager
def host_root() -> Iterator[Root]:
    """The host's files, by the caller's own paths: links on the way are followed as usual."""
    with closing(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        yield Root(fd, "", 0)


@contextmanager
def directory_root(directory: Path, label: str | None = None, *, resolve: int = 0) -> Iterator[Root]:
    """A directory that is somebody's root file system: links in it are followed as they will be there.

    ``resolve`` restricts them further: with RESOLVE_NO_SYMLINKS no link is followed.
    """
    with closing(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        yield Root(fd, os.fspath(directory) if label is None else label, _CONFINED | resolve)


@contextmanager
def process_root(pid: int, cgroup: Cgroup, label: str) -> Iterator[Root]:
    """The root of a process as it sees it, with its mounts. Raises ProcessLookupError if it is not in ``cgroup``."""
    try:
        process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
    with closing(process):
        # Checked only after the directory is open: it stays that of the process that had the pid then.
        if not cgroup.is_populated() or pid not in cgroup.members():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    with closing(root):
        yield Root(root, label, _CONFINED)


@contextmanager
def naming(shown: str) -> Iterator[None]:
    """Make an OSError of the block name the whole path, unless it does so already."""
    try:
        yield
    except OSError as error:
        if "/" in str(error.filename or ""):
            raise
        raise OSError(error.errno, error.strerror, shown) from error


@contextmanager
def opened(directory: int, name: str, flags: int, mode: int = 0) -> Iterator[int]:
    """An entry of an open directory; a link is not followed."""
    with closing(os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)) as fd:
        yield fd


@contextmanager
def opened_directory(directory: int, name: str) -> Iterator[int]:
    """A directory in an open directory; a link to one is not followed."""
    with closing(_open_directory(directory, name)) as fd:
        yield fd


@contextmanager
def reopened(found: int, flags: int) -> Iterator[int]:
    """Open what a descriptor of :meth:`Root.found` refers to; it cannot have become something else since."""
    with closing(_reopen(found, flags)) as fd:
        yield fd


def list_directory(directory: int) -> list[str]:
    """The names in an open directory as they are now, in order.

    btrfs shows only what was there when the directory was opened or rewound.
    """
    os.lseek(directory, 0, os.SEEK_SET)
    return sorted(os.listdir(directory))


def status_of(directory: int, name: str) -> os.stat_result | None:
    """What an entry of an open directory is, not following a link; None if there is none."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_of_the_kernel(fd: int) -> bool:
    """Whether an open file lies in /proc, /sys or the like, where the kernel makes up what files contain."""
    return file_system_type(fd) in _KERNEL_FILE_SYSTEMS


def holds_secrets(fd: int) -> bool:
    """Whether an open file lies where the secrets of a branch are: nothing else in a branch is on a ramfs."""
    return file_system_type(fd) == _RAMFS


def is_directory(directory: int, name: str) -> bool:
    """Whether an entry of an open directory is one itself; a link to one is not."""
    status = status_of(directory, name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_mount_point(directory: int, name: str) -> bool:
    """Whether something is mounted on an entry of an open directory."""
    try:
        os.close(openat2(directory, name, os.O_PATH | os.O_NOFOLLOW, RESOLVE_NO_XDEV))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        raise
    return False


def _open_directory(directory: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _reopen(found: int, flags: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, error.strerror) from error  # without our own path, which says nothing


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """A descriptor for the length of the block."""
    try:
        yield fd
    finally:
        os.close(fd)
