"""Give a finished copy its name, so that nobody ever sees half of it.

A copy is written next to its destination under a temporary name, ``.waypoint-copy-…``, and renamed when it
is complete. If we die before that, it stays behind, and the next copy into the same directory removes it. A copy
in progress stays: its writer holds a lock on it.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from waypoint.errors import CopyFailed
from waypoint.kernel.copy.confined import (
    Destination,
    is_directory,
    is_mount_point,
    list_directory,
    naming,
    opened,
    opened_directory,
    status_of,
)
from waypoint.kernel.copy.file_tree import (
    PARENT_MODE,
    READING,
    CopyJob,
    copy_entry,
    is_temporary,
    make_directory,
    make_file,
    remove_entry,
)
from waypoint.kernel.syscalls import RENAME_EXCHANGE, rename_at

__all__ = ["put_directory", "put_file", "put_link"]

_TRIES = 10

_Visit = Callable[[int, int, str, str], None]


def put_file(destination: Destination, fill: Callable[[int], None]) -> None:
    """Let ``fill`` write a new file and put it at ``destination``, over anything there but a directory or a device.

    Missing directories on the way are made. What was there stays until the new file is on disk.
    """
    if not destination.names:
        raise CopyFailed(destination.shown, "a directory is there", hint="name a file in it")
    *parents, name = destination.names
    if parents:

        def fill_directory(directory: int) -> None:
            with make_file(directory, name) as made:
                fill(made)
            os.fchmod(directory, PARENT_MODE)

        put_directory(Destination(destination.directory, tuple(parents), destination.shown), fill_directory)
        return
    _require_replaceable(destination.directory, name, destination.shown, by_directory=False)
    with naming(destination.shown), _staged(destination.directory, make_file) as (temporary, made):
        fill(made)
        os.fsync(made)
        _require_replaceable(destination.directory, name, destination.shown, by_directory=False)
        os.rename(temporary, name, src_dir_fd=destination.directory, dst_dir_fd=destination.directory)


def put_directory(destination: Destination, fill: Callable[[int], None]) -> None:
    """Let ``fill`` fill a new directory and give it its mode; put it at ``destination``, or merge it into one there.

    The destination is not touched before the copy is complete. A merge replaces file by file.
    """
    if destination.names:
        _require_replaceable(
            destination.directory, destination.names[0], destination.shown, by_directory=True
        )
    with naming(destination.shown), _staged(destination.directory, make_directory) as (temporary, made):
        _fill_below(made, destination.names[1:], fill)
        if destination.names:
            _move(
                destination.directory,
                temporary,
                destination.directory,
                destination.names[0],
                destination.shown,
            )
        else:
            _merge(made, destination.directory, destination.shown)


def put_link(destination: Destination, target: str) -> None:
    """Put a symbolic link at ``destination``, over anything there but a directory or a device."""
    *parents, name = destination.names

    def fill_directory(directory: int) -> None:
        os.symlink(target, name, dir_fd=directory)
        os.fchmod(directory, PARENT_MODE)

    if parents:
        put_directory(Destination(destination.directory, tuple(parents), destination.shown), fill_directory)
    else:
        put_directory(
            Destination(destination.directory, (), os.path.dirname(destination.shown)), fill_directory
        )


def _fill_below(directory: int, names: tuple[str, ...], fill: Callable[[int], None]) -> None:
    if not names:
        fill(directory)
        return
    with make_directory(directory, names[0]) as made:
        _fill_below(made, names[1:], fill)
    os.fchmod(directory, PARENT_MODE)


def _merge(source: int, target: int, shown: str) -> None:
    """Move all entries of an open directory into another, after checking that each can be put there."""
    _walk_both(source, target, shown, _check)
    _walk_both(source, target, shown, lambda below, onto, name, path: _move(below, name, onto, name, path))


def _walk_both(source: int, target: int, shown: str, visit: _Visit) -> None:
    """Visit every entry of a tree; but a directory that both trees have is entered instead."""
    for name in list_directory(source):
        path = f"{shown}/{name}"
        with naming(path):
            if is_directory(source, name) and is_directory(target, name):
                with opened_directory(source, name) as below, opened_directory(target, name) as onto:
                    _walk_both(below, onto, path, visit)
            else:
                visit(source, target, name, path)


def _check(source: int, target: int, name: str, shown: str) -> None:
    _require_replaceable(target, name, shown, by_directory=is_directory(source, name))


def _move(source: int, old_name: str, target: int, name: str, shown: str) -> None:
    """Rename an entry, replacing what has the new name; if both are directories, merge the one into the other."""
    moves_directory, is_there = is_directory(source, old_name), status_of(target, name) is not None
    _require_replaceable(target, name, shown, by_directory=moves_directory)
    try:
        if moves_directory and is_directory(target, name):
            with opened_directory(source, old_name) as below, opened_directory(target, name) as onto:
                _merge(below, onto, shown)
        elif moves_directory and is_there:
            # The entry that was there is then removed with the copy.
            rename_at(source, old_name, target, name, RENAME_EXCHANGE)
        else:
            if is_there:
                _write_out(source, old_name)
            os.rename(old_name, name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Another file system is mounted below the destination: copy once more, into that.
        with _staged(target, make_directory) as (_, made):
            copy_entry(source, made, old_name, CopyJob(keeps_links=True), shown)
            _move(made, old_name, target, name, shown)


def _write_out(directory: int, name: str) -> None:
    """Write a file to disk before it replaces another; a link holds nothing to lose."""
    status = status_of(directory, name)
    if status is not None and stat.S_ISREG(status.st_mode):
        with opened(directory, name, READING) as fd:
            os.fsync(fd)


def _require_replaceable(directory: int, name: str, shown: str, *, by_directory: bool) -> None:
    there = status_of(directory, name)
    if there is None:
        return
    if stat.S_ISDIR(there.st_mode) and not by_directory:
        raise CopyFailed(shown, "a directory is there", hint="remove it first, or choose another name")
    is_device = stat.S_ISCHR(there.st_mode) or stat.S_ISBLK(there.st_mode)
    # /dev/stdout and the like: whoever names them wants to write to them, not to replace them.
    if is_device or (
        stat.S_ISLNK(there.st_mode) and os.readlink(name, dir_fd=directory).startswith("/proc/")
    ):
        raise CopyFailed(shown, "a device is there", hint="name a file, or - for a tar stream")
    # From outside the branch the kernel would allow it, and the branch would lose its mount.
    if not stat.S_ISDIR(there.st_mode) and is_mount_point(directory, name):
        raise CopyFailed(
            shown, "a volume is there", hint="copy to the file of the host that is mounted there"
        )


@contextmanager
def _staged(
    directory: int, make: Callable[[int, str], AbstractContextManager[int]]
) -> Iterator[tuple[str, int]]:
    """A new entry under a temporary name, locked. Whatever has that name at the end is removed."""
    _remove_leftovers(directory)
    for _ in range(_TRIES):
        name = f".waypoint-copy-{os.urandom(8).hex()}"
        try:
            with make(directory, name) as made:
                if _claim(made):
                    yield name, made
                    return
        finally:
            remove_entry(directory, name)
    raise OSError(errno.EBUSY, "someone keeps removing or locking the unfinished copy")


def _claim(made: int) -> bool:
    """Lock a new entry. False if another copy took it for a leftover just before that."""
    try:
        fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(made).st_nlink > 0


def _remove_leftovers(directory: int) -> None:
    """Remove interrupted copies. They are in nobody's way, so it is no error if one stays."""
    for name in filter(is_temporary, list_directory(directory)):
        status = status_of(directory, name)
        if status is None:
            continue
        with suppress(OSError):
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                with opened(directory, name, READING) as left:
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_entry(directory, name)
            else:  # something that a directory has replaced; only copies themselves are locked
                remove_entry(directory, name)
