"""Copy files into and out of an instance whose file system cannot be reached from the host: by programs run in it.

A single file needs nothing but ``sh`` and ``cat`` there, a directory also ``tar``.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from waypoint.errors import CopyFailed
from waypoint.kernel.copy.confined import host_root
from waypoint.kernel.copy.file_tree import PERMISSIONS, CopyJob, check_tree, write_all
from waypoint.kernel.copy.replacement import put_directory, put_file
from waypoint.kernel.copy.tar_stream import TarWriter, unpack_tar

__all__ = ["Execute", "copy_in", "copy_out"]

Execute = Callable[[tuple[str, ...], IO[bytes] | None, IO[bytes]], tuple[int, str]]
"""Runs a program in the instance with an input and an output; returns its exit status and its error messages."""

_CHUNK_BYTES = 1 << 20
_NOTHING, _FILE, _DIRECTORY = 4, 5, 7
_MODE = 0o644  # of a file whose mode is not known

_LOOK = f"""\
[ -d "$1" ] && exit {_DIRECTORY}; [ -f "$1" ] || exit {_NOTHING}; ls -ldL -- "$1"; exit {_FILE}
"""
_PUT_FILE = """\
to=$1; case $to in */) mkdir -p "$to" || exit;; esac
[ -d "$to" ] && to=${to%/}/$2
case $to in */*) mkdir -p "${to%/*}/" || exit;; esac
cat >"$to.statefork.$$" && chmod "$3" "$to.statefork.$$" && mv -f "$to.statefork.$$" "$to"
"""
_PUT_DIRECTORY = """\
[ -d "$1" ] || rm -f "$1"; mkdir -p "$1" && exec tar -C "$1" -xf -
"""


def copy_in(execute: Execute, source: Path, path: str) -> None:
    """Copy a file or directory of the host to ``path``. Raises CopyFailed or OSError."""
    status = source.stat()
    with tempfile.TemporaryFile() as output:
        if stat.S_ISDIR(status.st_mode):
            with tempfile.TemporaryFile() as archive:
                _pack(source, archive)
                code, said = execute(_shell(_PUT_DIRECTORY, path), archive, output)
        elif stat.S_ISREG(status.st_mode):
            mode = f"{stat.S_IMODE(status.st_mode) & PERMISSIONS:o}"
            with open(source, "rb") as content:
                code, said = execute(_shell(_PUT_FILE, path, source.name, mode), content, output)
        else:
            raise CopyFailed(os.fspath(source), "it is neither a file nor a directory")
    if code:
        raise CopyFailed(path, said or f"it cannot be written inside (exit status {code})")


def copy_out(execute: Execute, path: str, target: Path) -> None:
    """Copy a file or directory to ``target`` on the host. Raises CopyFailed or OSError."""
    with tempfile.TemporaryFile() as output, host_root() as host:
        with tempfile.TemporaryFile() as listing:
            kind, said = execute(_shell(_LOOK, path), None, listing)
            listing.seek(0)
            mode = _mode(listing.read(10).decode(errors="replace"))
        if kind == _FILE:
            _read(execute, _shell('exec cat "$1"', path), path, output)
            with host.destination(os.fspath(target), into=os.path.basename(path)) as destination:
                put_file(destination, lambda made: _copy(output, made, mode))
        elif kind == _DIRECTORY:
            _read(execute, _shell('exec tar -C "$1" -cf - .', path), path, output)
            job = CopyJob(keeps_links=True)
            with host.destination(os.fspath(target)) as destination:
                put_directory(destination, lambda made: unpack_tar(output, made, job))
        else:
            raise CopyFailed(path, said or "there is no such file or directory inside")


def _mode(listed: str) -> int:
    """The permissions that ``ls`` shows as ``-rwxr-x---``."""
    bits = listed[1:]
    if len(bits) != 9:
        return _MODE
    return sum(1 << (8 - at) for at, sign in enumerate(bits) if sign not in "-ST")


def _shell(script: str, *arguments: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script, "sh", *arguments)


def _read(execute: Execute, command: tuple[str, ...], path: str, output: IO[bytes]) -> None:
    code, said = execute(command, None, output)
    if code:
        raise CopyFailed(path, said or f"it cannot be read inside (exit status {code})")
    output.seek(0)


def _pack(source: Path, archive: IO[bytes]) -> None:
    job = CopyJob(keeps_links=True)
    directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_tree(directory, job, os.fspath(source))
        writer = TarWriter(archive, job)
        writer.add_directory(directory, ".", os.fspath(source))
        writer.end()
    finally:
        os.close(directory)
    archive.flush()
    archive.seek(0)


def _copy(content: IO[bytes], made: int, mode: int) -> None:
    at = 0
    while data := content.read(_CHUNK_BYTES):
        write_all(made, data, at)
        at += len(data)
    os.fchmod(made, mode)
