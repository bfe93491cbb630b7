"""Copy, check and remove trees of files, from open directory to open directory.

What is copied: names, contents, holes and permission bits. What is refused by name: links (unless they are
kept as links), devices, sockets, FIFOs. Nothing here follows a link or waits for a writer.

Read next: :mod:`waypoint.kernel.copy.replacement`, which gives a finished copy its name.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from waypoint.errors import CopyFailed
from waypoint.kernel.copy.confined import (
    holds_secrets,
    is_of_the_kernel,
    list_directory,
    naming,
    opened,
    opened_directory,
    status_of,
)
from waypoint.model import CopyResult

__all__ = [
    "BUFFER_BYTES",
    "DEPTH_MAX",
    "PARENT_MODE",
    "PERMISSIONS",
    "READING",
    "CopyJob",
    "check_tree",
    "copy_content",
    "copy_entry",
    "copy_tree",
    "is_temporary",
    "list_names",
    "make_directory",
    "make_file",
    "read_content",
    "refuse",
    "remove_entry",
    "require_regular",
    "write_all",
]

# Across file systems neither copy_file_range (refused) nor sendfile (measured) beats reading and writing.
BUFFER_BYTES = 1 << 20
DEPTH_MAX = 256  # two descriptors for each level
UNSIZED_BYTES_MAX = 64 << 20
PERMISSIONS = 0o777
PARENT_MODE = 0o755  # of directories for which nobody has given a mode
READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

_TEMPORARY = re.compile(r"\.waypoint-copy-[0-9a-f]{16}")
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


class CopyJob:
    """One copy in progress: whether links are kept, and what has been copied so far."""

    def __init__(
        self, *, keeps_links: bool = False, on_progress: Callable[[CopyResult], None] | None = None
    ) -> None:
        self.keeps_links = keeps_links
        self.files = self.directories = self.links = self.size_bytes = 0
        self._on_progress = on_progress

    def result(self) -> CopyResult:
        return CopyResult(
            files=self.files, directories=self.directories, links=self.links, size_bytes=self.size_bytes
        )

    def advance(self, *, files: int = 0, directories: int = 0, links: int = 0, size_bytes: int = 0) -> None:
        self.files += files
        self.directories += directories
        self.links += links
        self.size_bytes += size_bytes
        if self._on_progress is not None:
            self._on_progress(self.result())


def is_temporary(name: str) -> bool:
    """Whether an entry is a copy that is in progress or was interrupted."""
    return _TEMPORARY.fullmatch(name) is not None


def list_names(directory: int) -> list[str]:
    """The entries of a directory; unfinished copies do not belong to it."""
    return [name for name in list_directory(directory) if not is_temporary(name)]


def refuse(mode: int, shown: str) -> NoReturn:
    """Raise CopyFailed for an entry of a kind that cannot be copied."""
    kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
    hint = "only files and directories are copied"
    if stat.S_ISLNK(mode):
        hint = "copy the file or directory that it points to, or keep links with --links"
    raise CopyFailed(shown, f"it is {kind}", hint=hint)


def check_tree(directory: int, job: CopyJob, shown: str, depth: int = 0) -> None:
    """Raise CopyFailed for the first entry that cannot be copied. Nothing is read or changed."""
    if depth > DEPTH_MAX:
        raise CopyFailed(shown, f"it is more than {DEPTH_MAX} directories deep", hint="copy a part of it")
    with naming(shown):
        if is_of_the_kernel(directory):
            what = "the kernel makes up its files as they are read, so the tree cannot be copied"
            raise CopyFailed(shown, what, hint="copy single files of it")
        if holds_secrets(directory):
            raise CopyFailed(shown, "secrets are not copied with a tree", hint="copy the other files by name")
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if not is_temporary(entry.name)]
    for entry in sorted(found, key=lambda entry: entry.name):
        path = f"{shown}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError), naming(path), opened_directory(directory, entry.name) as below:
                check_tree(below, job, path, depth + 1)
        elif not entry.is_file(follow_symlinks=False) and not (entry.is_symlink() and job.keeps_links):
            status = status_of(directory, entry.name)
            if status is not None:
                refuse(status.st_mode, path)


def copy_tree(source: int, target: int, job: CopyJob, shown: str, depth: int = 0) -> None:
    """Copy all entries of one open directory into another, in which none of them exists yet."""
    if depth > DEPTH_MAX:
        raise CopyFailed(shown, f"it is more than {DEPTH_MAX} directories deep", hint="copy a part of it")
    for name in list_names(source):
        with naming(f"{shown}/{name}"):
            copy_entry(source, target, name, job, f"{shown}/{name}", depth)


def copy_entry(source: int, target: int, name: str, job: CopyJob, shown: str, depth: int = 0) -> None:
    """Copy one entry of an open directory, with all below it, into another directory.

    An entry that was removed since it was listed is no error: programs keep running while we copy.
    """
    status = status_of(source, name)
    if status is None:
        return
    if stat.S_ISDIR(status.st_mode):
        with opened_directory(source, name) as below, make_directory(target, name) as made:
            copy_tree(below, made, job, shown, depth + 1)
            os.fchmod(made, status.st_mode & PERMISSIONS)
        job.advance(directories=1)
    elif stat.S_ISREG(status.st_mode):
        with opened(source, name, READING) as content, make_file(target, name) as made:
            copy_content(content, made, job, shown)
    elif stat.S_ISLNK(status.st_mode) and job.keeps_links:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        job.advance(links=1)
    else:
        refuse(status.st_mode, shown)


@contextmanager
def make_directory(directory: int, name: str) -> Iterator[int]:
    """A new directory, open, which nobody but root may enter yet."""
    os.mkdir(name, 0o700, dir_fd=directory)
    with opened_directory(directory, name) as made:
        yield made


@contextmanager
def make_file(directory: int, name: str) -> Iterator[int]:
    """A new file, open for writing, which nobody but root may read yet."""
    with opened(directory, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) as made:
        yield made


def copy_content(source: int, target: int, job: CopyJob, shown: str) -> None:
    """Copy an open file into a new one, with its permission bits and its holes.

    Only what the file held at the beginning is copied, so that copying one that keeps growing ends.
    """
    status = require_regular(source, shown)
    with naming(shown):
        if status.st_size == 0:
            data = _read_unsized(source, shown)
            write_all(target, data, 0)
            job.advance(size_bytes=len(data))
        else:
            os.ftruncate(target, _copy_sized(source, target, status.st_size, job))
        os.fchmod(target, status.st_mode & PERMISSIONS)
    job.advance(files=1)


def read_content(source: int, shown: str) -> bytes:
    """What an open file held at the beginning; if its size is given as 0, all up to its end."""
    status = require_regular(source, shown)
    chunks, left = [], status.st_size
    with naming(shown):
        if status.st_size == 0:
            return _read_unsized(source, shown)
        while left and (chunk := os.read(source, min(left, BUFFER_BYTES))):
            chunks.append(chunk)
            left -= len(chunk)
    return b"".join(chunks)


def require_regular(source: int, shown: str) -> os.stat_result:
    status = os.fstat(source)
    if stat.S_ISDIR(status.st_mode):
        raise CopyFailed(shown, "it is a directory", hint="name a file in it")
    if not stat.S_ISREG(status.st_mode):
        refuse(status.st_mode, shown)
    return status


def _read_unsized(source: int, shown: str) -> bytes:
    """Read to the end: files of /proc report a size of 0, whatever they hold. But not every file has an end."""
    chunks, total = [], 0
    while chunk := os.read(source, BUFFER_BYTES):
        chunks.append(chunk)
        total += len(chunk)
        if total > UNSIZED_BYTES_MAX:
            raise CopyFailed(shown, "it was empty when opened, but reading it does not end")
    return b"".join(chunks)


def _copy_sized(source: int, target: int, size: int, job: CopyJob) -> int:
    """Copy the first ``size`` bytes, except holes; return the length of the copy."""
    buffer = memoryview(bytearray(min(size, BUFFER_BYTES)))
    for start, end in _data_ranges(source, size):
        at = start
        while at < end:
            count = os.preadv(source, [buffer[: end - at]], at)
            if count == 0:
                return at  # the file became shorter, or is an attribute in /sys that fills no page
            write_all(target, buffer[:count], at)
            at += count
            job.advance(size_bytes=count)
    return size


def _data_ranges(source: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are not holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            start, end = at, size  # this file system does not report holes
        yield start, min(end, size)
        at = end


def write_all(target: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(target, view, at)
        view, at = view[count:], at + count


def remove_entry(directory: int, name: str, depth: int = 0) -> None:
    """Remove an entry of an open directory and all below it, if it still exists."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        if depth > 2 * DEPTH_MAX:
            raise
        with suppress(FileNotFoundError):
            with opened_directory(directory, name) as below:
                for entry in list_directory(below):
                    remove_entry(below, entry, depth + 1)
            os.rmdir(name, dir_fd=directory)
