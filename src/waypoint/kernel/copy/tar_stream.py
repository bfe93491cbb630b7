"""Trees of files as tar streams, written from open directories and unpacked into them.

An archive may come from anywhere, so its names are not trusted: absolute ones, ``..``, links, devices and
whatever else would not be copied are refused by name. Members are written by descriptor below the directory
they belong in, so that no link made by an earlier member, or by a program meanwhile, redirects them.
"""

import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Protocol, cast

from waypoint.errors import CopyFailed
from waypoint.kernel.copy.confined import is_directory, naming, opened, opened_directory, status_of
from waypoint.kernel.copy.file_tree import (
    BUFFER_BYTES,
    DEPTH_MAX,
    PARENT_MODE,
    PERMISSIONS,
    READING,
    CopyJob,
    copy_content,
    list_names,
    make_file,
    read_content,
    refuse,
    remove_entry,
    require_regular,
    write_all,
)

__all__ = ["Readable", "TarWriter", "Writable", "unpack_tar"]

RECORD_BYTES = 10240  # archives end on a multiple of this, as tar itself writes them
# Raised by the library that reads archives, when one is cut off or damaged.
_READ_ERRORS = (
    tarfile.TarError,
    EOFError,
    ValueError,
    TypeError,
    IndexError,
    OverflowError,
    RecursionError,
    lzma.LZMAError,
    zlib.error,
)
_REFUSED = {
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
}


class Readable(Protocol):
    """What an archive is read from."""

    def read(self, size: int, /) -> bytes: ...


class Writable(Protocol):
    """What an archive is written to."""

    def write(self, data: bytes, /) -> object: ...


class TarWriter:
    """Writes an archive, entry by entry, and keeps none of it in memory."""

    def __init__(self, stream: Writable, job: CopyJob) -> None:
        self._stream = stream
        self._job = job
        self._written = 0

    def add_directory(self, directory: int, name: str, shown: str, depth: int = 0) -> None:
        """Add an open directory and all below it."""
        if depth > DEPTH_MAX:
            raise CopyFailed(shown, f"it is more than {DEPTH_MAX} directories deep", hint="copy a part of it")
        self._add_header(name, tarfile.DIRTYPE, os.fstat(directory))
        self._job.advance(directories=1)
        for entry in list_names(directory):
            path, member = f"{shown}/{entry}", f"{name}/{entry}"
            with naming(path):
                status = status_of(directory, entry)
                if status is None:
                    continue  # removed since it was listed: programs keep running while we copy
                if stat.S_ISDIR(status.st_mode):
                    with opened_directory(directory, entry) as below:
                        self.add_directory(below, member, path, depth + 1)
                elif stat.S_ISREG(status.st_mode):
                    with opened(directory, entry, READING) as content:
                        self.add_file(content, member, path)
                elif stat.S_ISLNK(status.st_mode) and self._job.keeps_links:
                    self.add_link(os.readlink(entry, dir_fd=directory), member, status)
                else:
                    refuse(status.st_mode, path)

    def add_file(self, content: int, name: str, shown: str) -> None:
        """Add an open file. Its size is written before its content, so it must not become shorter meanwhile."""
        status = require_regular(content, shown)
        if (
            status.st_size <= BUFFER_BYTES
        ):  # also files of /proc and the like, whose size is known only when they are read
            data = read_content(content, shown)
            self._add_header(name, tarfile.REGTYPE, status, size=len(data))
            self._write_data(data)
        else:
            self._add_header(name, tarfile.REGTYPE, status, size=status.st_size)
            left = status.st_size
            while left:
                data = os.read(content, min(left, BUFFER_BYTES))
                if not data:
                    raise CopyFailed(shown, "it became shorter while it was read")
                left -= len(data)
                self._write_data(data)
        self._pad(tarfile.BLOCKSIZE)
        self._job.advance(files=1)

    def add_link(self, target: str, name: str, status: os.stat_result) -> None:
        self._add_header(name, tarfile.SYMTYPE, status, target=target)
        self._job.advance(links=1)

    def end(self) -> None:
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._pad(RECORD_BYTES)

    def _add_header(
        self, name: str, kind: bytes, status: os.stat_result, *, size: int = 0, target: str = ""
    ) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.size, member.linkname = kind, size, target
        member.mode = status.st_mode & PERMISSIONS
        member.mtime = int(status.st_mtime)
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write_data(self, data: bytes) -> None:
        self._write(data)
        self._job.advance(size_bytes=len(data))

    def _pad(self, block: int) -> None:
        self._write(bytes(-self._written % block))

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._written += len(data)


def unpack_tar(stream: Readable, directory: int, job: CopyJob) -> None:
    """Unpack an archive, compressed or not, into an open new directory.

    Raises CopyFailed at the first member that is refused; the caller discards the directory then.
    """
    mode = PARENT_MODE
    with _reading():
        archive = tarfile.open(  # noqa: SIM115 - closed below
            fileobj=cast(IO[bytes], stream),
            mode="r|*",
            bufsize=BUFFER_BYTES,
            encoding="utf-8",
            errors="surrogateescape",
        )
    with archive:
        while True:
            with _reading():
                member = archive.next()
            if member is None:
                break
            vars(archive)["members"].clear()  # otherwise it would keep every member in memory
            shown = f"tar:{member.name}"
            names = _checked_names(member.name, shown)
            if not names and member.isdir():
                mode = member.mode & PERMISSIONS
                continue
            with naming(shown):
                _unpack(archive, member, names, directory, job, shown)
    os.fchmod(directory, mode)


def _unpack(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    names: list[str],
    directory: int,
    job: CopyJob,
    shown: str,
) -> None:
    if member.isdir():
        with _made_directory(directory, names) as made:
            os.fchmod(made, member.mode & PERMISSIONS)
        job.advance(directories=1)
        return
    if not (member.isreg() or member.islnk() or (member.issym() and job.keeps_links)):
        refuse(_REFUSED.get(member.type, 0), shown)
    if not names:
        raise CopyFailed(shown, "it is not a directory, but has the name of one")
    with _made_directory(directory, names[:-1]) as parent:
        name = names[-1]
        if is_directory(parent, name):
            raise CopyFailed(shown, "the archive has a directory of the same name")
        remove_entry(parent, name)  # of members with the same name the last one counts
        if member.issym():
            if "\0" in member.linkname:
                raise CopyFailed(shown, "its target contains a null byte")
            os.symlink(member.linkname, name, dir_fd=parent)
            job.advance(links=1)
            return
        with make_file(parent, name) as made:
            if member.islnk():
                _copy_earlier(directory, member.linkname, made, job, shown)
            else:
                _write_member(archive, member, made, job)


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, made: int, job: CopyJob) -> None:
    with _reading():
        content = archive.extractfile(member)
    assert content is not None  # it is a regular file
    at = 0
    with content:
        while True:
            with _reading():
                data = content.read(BUFFER_BYTES)
            if not data:
                break
            write_all(made, data, at)
            at += len(data)
            job.advance(size_bytes=len(data))
    os.fchmod(made, member.mode & PERMISSIONS)
    job.advance(files=1)


def _copy_earlier(directory: int, link: str, made: int, job: CopyJob, shown: str) -> None:
    """A hard link to an earlier member becomes a file of its own."""
    names = _checked_names(link, shown)
    if not names:
        raise CopyFailed(shown, "it is a link to a directory")
    with ExitStack() as stack:
        at = directory
        for name in names[:-1]:
            at = stack.enter_context(opened_directory(at, name))
        copy_content(stack.enter_context(opened(at, names[-1], READING)), made, job, shown)


@contextmanager
def _made_directory(directory: int, names: list[str]) -> Iterator[int]:
    """Open a directory below an open one; make those on the way that are missing."""
    with ExitStack() as stack:
        at = directory
        for name in names:
            is_new = status_of(at, name) is None
            if is_new:
                os.mkdir(name, dir_fd=at)
            at = stack.enter_context(opened_directory(at, name))
            if is_new:
                os.fchmod(at, PARENT_MODE)
        yield at


def _checked_names(name: str, shown: str) -> list[str]:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise CopyFailed(
            shown, "its name points outside the destination", hint="make the archive with tar -C DIR ."
        )
    if len(parts) > DEPTH_MAX:
        raise CopyFailed(shown, f"it is more than {DEPTH_MAX} directories deep")
    return [part for part in parts if part not in ("", ".")]


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except _READ_ERRORS as error:
        raise CopyFailed(
            "tar:", f"the stream is not a whole tar archive: {error}", hint="was it cut off?"
        ) from error
