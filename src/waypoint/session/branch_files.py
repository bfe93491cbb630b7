"""Files into and out of a live branch.

A branch is reached through the root of its init, so that its own mounts are seen, and only by descriptor
(:mod:`waypoint.kernel.copy.confined`). A copy into a branch holds the branch's lock alone, a copy out of it shares the
lock: no checkpoint holds half a copy, and no restore swaps the branch meanwhile. Commands keep running. The methods of
:class:`waypoint.session.branch_verbs.BranchVerbs` with the same names say what each function does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from typing import TYPE_CHECKING

from waypoint.errors import Broken, CopyFailed, DiskLimitReached, NotFound, PoolFull, Suspended, UsageError
from waypoint.kernel.copy.confined import Root, host_root, process_root, reopened, status_of
from waypoint.kernel.copy.file_tree import (
    PERMISSIONS,
    READING,
    CopyJob,
    check_tree,
    copy_content,
    copy_tree,
    read_content,
    refuse,
    require_regular,
    write_all,
)
from waypoint.kernel.copy.replacement import put_directory, put_file, put_link
from waypoint.log import Timeline
from waypoint.model import CopyResult, OperationKind, SessionRecord
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import settle_abandoned
from waypoint.store.lock import locked

if TYPE_CHECKING:
    from waypoint.kernel.copy.tar_stream import Readable, Writable

__all__ = [
    "Path",
    "Progress",
    "Where",
    "copy_between",
    "download",
    "download_tar",
    "read_file",
    "upload",
    "upload_tar",
    "write_file",
]

Where = tuple[Context, SessionRecord, str]
"""A branch, by its session and name."""
Path = str | PathLike[str]
Progress = Callable[[CopyResult], None]


def read_file(where: Where, path: Path, *, wait: bool = True) -> bytes:
    inside = _path_in_branch(path)
    with (
        _branch_root(where, OperationKind.READ_FILE, writes=False, wait=wait) as root,
        _opened(root, inside, follow=True) as found,
    ):
        require_regular(found, root.shown(inside))
        with reopened(found, READING) as content:
            return read_content(content, root.shown(inside))


def write_file(where: Where, path: Path, data: bytes | str, mode: int = 0o644, *, wait: bool = True) -> None:
    inside = _path_in_branch(path)
    content = data.encode() if isinstance(data, str) else data
    if not 0 <= mode <= PERMISSIONS:
        raise UsageError(
            f"a file mode of {mode:#o} is out of range", hint="0 to 0o777: read, write and execute bits"
        )

    def fill(made: int) -> None:
        write_all(made, content, 0)
        os.fchmod(made, mode)

    with (
        _branch_root(where, OperationKind.WRITE_FILE, writes=True, wait=wait) as root,
        root.destination(inside) as destination,
    ):
        put_file(destination, fill)


def upload(
    where: Where,
    host_path: Path,
    path: Path,
    *,
    links: bool = False,
    follow: bool = False,
    wait: bool = True,
    on_progress: Progress | None = None,
) -> CopyResult:
    outside, inside = _path_on_host(host_path), _path_in_branch(path)
    job = CopyJob(keeps_links=links, on_progress=on_progress)
    with host_root() as host, _branch_root(where, OperationKind.UPLOAD, writes=True, wait=wait) as root:
        copy_between(host, outside, root, inside, job, follow=follow)
    return job.result()


def download(
    where: Where,
    path: Path,
    host_path: Path,
    *,
    links: bool = False,
    follow: bool = False,
    wait: bool = True,
    on_progress: Progress | None = None,
) -> CopyResult:
    inside, outside = _path_in_branch(path), _path_on_host(host_path)
    job = CopyJob(keeps_links=links, on_progress=on_progress)
    with host_root() as host, _branch_root(where, OperationKind.DOWNLOAD, writes=False, wait=wait) as root:
        copy_between(root, inside, host, outside, job, follow=follow)
    return job.result()


def upload_tar(
    where: Where,
    stream: Readable,
    path: Path,
    *,
    links: bool = False,
    wait: bool = True,
    on_progress: Progress | None = None,
) -> CopyResult:
    from waypoint.kernel.copy.tar_stream import unpack_tar  # tarfile takes a while to import

    inside = _path_in_branch(path)
    job = CopyJob(keeps_links=links, on_progress=on_progress)
    with (
        _branch_root(where, OperationKind.UPLOAD, writes=True, wait=wait) as root,
        root.destination(inside) as destination,
    ):
        if destination.names and status_of(destination.directory, destination.names[0]) is not None:
            raise CopyFailed(
                destination.shown,
                "a tar stream is unpacked into a directory, and something else is there",
            )
        put_directory(destination, lambda made: unpack_tar(stream, made, job))
    return job.result()


def download_tar(
    where: Where,
    path: Path,
    stream: Writable,
    *,
    links: bool = False,
    wait: bool = True,
    on_progress: Progress | None = None,
) -> CopyResult:
    from waypoint.kernel.copy.tar_stream import TarWriter

    inside = _path_in_branch(path)
    job = CopyJob(keeps_links=links, on_progress=on_progress)
    with (
        _branch_root(where, OperationKind.DOWNLOAD, writes=False, wait=wait) as root,
        _opened(root, inside) as found,
    ):
        status, shown = os.fstat(found), root.shown(inside)
        name = os.path.basename(inside.rstrip("/"))
        name = "." if name in ("", "..") else name
        writer = TarWriter(stream, job)
        if stat.S_ISDIR(status.st_mode):
            with reopened(found, os.O_RDONLY | os.O_DIRECTORY) as directory:
                check_tree(directory, job, shown.rstrip("/"))
                writer.add_directory(directory, name, shown.rstrip("/"))
        elif stat.S_ISREG(status.st_mode):
            with reopened(found, READING) as content:
                writer.add_file(content, name, shown)
        elif stat.S_ISLNK(status.st_mode) and links:
            writer.add_link(os.readlink("", dir_fd=found), name, status)
        else:
            refuse(status.st_mode, shown)
        writer.end()
    return job.result()


@contextmanager
def _branch_root(where: Where, kind: OperationKind, *, writes: bool, wait: bool) -> Iterator[Root]:
    """The root of the running branch, under its lock."""
    context, session, name = where
    timeline = Timeline(kind)
    what = f"branch {name!r} of session {session.id}"
    context.catalogue.branch(session.id, name)  # a lock file is made only for what exists
    with locked(context.branch_lock(session.id, name), what=what, wait=wait, shared=not writes):
        if writes:
            settle_abandoned(context, session.id, name)
        branch = context.catalogue.branch(session.id, name)
        if branch.is_suspended:
            raise Suspended(session.id, name)
        cgroup = context.platform.cgroup(branch.incarnation)
        with ExitStack() as stack:
            try:
                root = stack.enter_context(process_root(branch.init_pid, cgroup, f"{name}:"))
            except ProcessLookupError as error:
                raise Broken(
                    f"{what} is not running",
                    hint=f"restore a checkpoint: waypoint restore {session.id}:{name} NAME",
                ) from error
            with timeline.step("copy"), _explained(what, writes=writes):
                yield root
    context.catalogue.record(kind, session.id, name, timeline.total_ms(), timeline.phases_ms)


def copy_between(
    source: Root, path: str, target: Root, to: str, job: CopyJob, *, follow: bool = False
) -> None:
    """Copy what is at ``path`` below one root to ``to`` below another; with ``follow``, what a link there points to."""
    with _opened(source, path, follow=follow) as found:
        status, shown, name = os.fstat(found), source.shown(path.rstrip("/")), os.path.basename(path)
        if stat.S_ISDIR(status.st_mode):
            with reopened(found, os.O_RDONLY | os.O_DIRECTORY) as directory:

                def fill(made: int) -> None:
                    copy_tree(directory, made, job, shown)
                    os.fchmod(made, status.st_mode & PERMISSIONS)
                    job.advance(directories=1)

                check_tree(directory, job, shown)  # before anything is made for it
                with target.destination(to) as destination:
                    put_directory(destination, fill)
        elif stat.S_ISREG(status.st_mode):
            with reopened(found, READING) as content, target.destination(to, into=name) as destination:
                put_file(destination, lambda made: copy_content(content, made, job, shown))
        elif stat.S_ISLNK(status.st_mode) and job.keeps_links:
            with target.destination(to, into=name) as destination:
                put_link(destination, os.readlink("", dir_fd=found))
            job.advance(links=1)
        else:
            refuse(status.st_mode, shown)


@contextmanager
def _opened(root: Root, path: str, *, follow: bool = False) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(root.found(path, follow=follow))
        except FileNotFoundError as error:
            raise NotFound(
                "file or directory",
                root.shown(path),
                hint="list what is there: waypoint exec SESSION[:BRANCH] -- ls DIR",
            ) from error
        yield found


def _path_in_branch(path: Path) -> str:
    text = _checked_path(path)
    if not text.startswith("/"):
        raise UsageError(f"{text!r} is not an absolute path", hint="paths in a branch begin with /")
    return text


def _path_on_host(path: Path) -> str:
    return os.path.join(os.getcwd(), _checked_path(path))


def _checked_path(path: Path) -> str:
    text = os.fspath(path)
    try:
        is_path = bool(os.fsencode(text)) and "\0" not in text
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise UsageError(f"{text!r} cannot be a path", hint="give the path of a file or directory")
    return text


@contextmanager
def _explained(where: str, *, writes: bool) -> Iterator[None]:
    """Raise an OSError of the block as an error of ours."""
    try:
        yield
    except BrokenPipeError:  # the reader of our archive has closed it
        raise
    except OSError as error:
        if writes and error.errno == errno.EDQUOT:
            raise DiskLimitReached(
                f"cannot copy: the disk limit is reached ({where})", hint="delete files in the branch"
            ) from error
        if writes and error.errno == errno.ENOSPC:
            raise PoolFull(f"cannot copy: the pool has no space left ({where})") from error
        raise CopyFailed(str(error.filename or where), error.strerror or str(error)) from error
