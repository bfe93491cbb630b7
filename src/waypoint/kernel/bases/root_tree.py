"""Root file systems as trees of files: unpack, copy and pack them, and prepare one to be a base.

An archive may come from anywhere. tar unpacks it in a cell: a root directory that holds the host's programs,
read-only, and the destination, and nothing else. So no name and no link in it leads to a file of the host.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from waypoint.errors import BuildFailed, ToolFailed
from waypoint.kernel.copy.confined import directory_root, opened_directory
from waypoint.kernel.processes.private_namespaces import run_private
from waypoint.kernel.processes.programs import CLEAN_ENV, PIPE, run_tool, spawn

__all__ = ["content_id", "copy_directory", "finish_tree", "tree_size", "unpack_archive", "write_archive"]

COPY_TIMEOUT_S = 3600.0
_BUFFER_BYTES = 1 << 20

# Arguments: a directory to make the cell on, the archive, the destination.
_UNPACK = """\
cell=$1 archive=$2 target=$3
mount -t tmpfs -o mode=0755 waypoint-cell "$cell"
mkdir "$cell/target"
mount --bind "$target" "$cell/target"
mount -o remount,bind,nodev,nosuid "$cell/target"
: >"$cell/archive"
mount --bind "$archive" "$cell/archive"
for name in usr bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$name" ]; then cp -P "/$name" "$cell/$name"
    elif [ -d "/$name" ]; then mkdir "$cell/$name"; mount --bind "/$name" "$cell/$name"; mount -o remount,bind,ro "$cell/$name"
    fi
done
mount -o remount,ro "$cell"
exec chroot "$cell" tar --extract --file=/archive --directory=/target --preserve-permissions --same-owner \
    --numeric-owner --xattrs --xattrs-include='*' --acls --delay-directory-restore
"""
# The order and the headers depend on nothing but the tree. tar writes its own pid into the archive for files
# with holes: in a namespace of its own that is always the same.
_PACK = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"),
    *("tar", "--create", "--sort=name", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls"),
    *("--format=posix", "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"),
)


def unpack_archive(archive: Path, target: Path, *, cell: Path, hold: Iterable[int] = ()) -> None:
    """Unpack a tar archive, compressed or not, into an existing directory; ``cell`` is an empty one."""
    try:
        run_private(
            _UNPACK,
            ("tar", os.fspath(cell), os.fspath(archive), os.fspath(target)),
            timeout_s=COPY_TIMEOUT_S,
            env=CLEAN_ENV,
            hold=tuple(hold),
        )
    except ToolFailed as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        reason = lines[0].removeprefix("tar: ") if lines else str(error)
        raise BuildFailed(f"cannot unpack {archive}: {reason}", hint="is it a whole tar archive?") from error


def copy_directory(source: Path, target: Path) -> None:
    """Copy a tree as it is, owners, links, holes and attributes included, but no other file system below it."""
    run_tool(
        (
            *("setpriv", "--pdeathsig", "KILL", "cp", "-a", "--reflink=auto", "--one-file-system"),
            *("-T", os.fspath(source), os.fspath(target)),
        ),
        timeout_s=COPY_TIMEOUT_S,
    )


def write_archive(tree: Path, write: Callable[[bytes], object]) -> None:
    """Write a tree as a tar archive: owners, links, holes and attributes as they are, in the order of names."""
    _pack(tree, write, "--sparse")


def _pack(tree: Path, write: Callable[[bytes], object], *options: str) -> None:
    command = (*_PACK, *options, "--directory", os.fspath(tree), ".")
    with tempfile.TemporaryFile() as errors:
        process = spawn(command, stdout=PIPE, stderr=errors)
        with process:  # closing the pipe ends tar, if we are the first to stop
            assert process.stdout is not None
            while data := process.stdout.read(_BUFFER_BYTES):
                write(data)
        if process.returncode != 0:
            errors.seek(0)
            raise ToolFailed(("tar",), process.returncode, errors.read().decode(errors="replace"))


def content_id(tree: Path) -> str:
    """A SHA-256 that identifies the content of a tree: that of its archive, in which holes are zeros.

    (The file system knows where a file has holes only once it has written the file.)
    """
    digest = hashlib.sha256()
    _pack(tree, digest.update)
    return digest.hexdigest()


def finish_tree(tree: Path, directories: Iterable[str]) -> int:
    """Prepare a tree to be a base; return how many device nodes were removed from it.

    A session has the devices it may use in a /dev of its own, and in an overlay a node can mean that a file
    is deleted. Those of ``directories`` that are missing are made.
    """
    if tree.stat().st_mode & 0o777 == 0o555:  # the mode that buildah gives the root of a first layer
        tree.chmod(0o755)
    found = run_tool(
        (
            "find",
            os.fspath(tree),
            "-xdev",
            "(",
            "-type",
            "b",
            "-o",
            "-type",
            "c",
            ")",
            "-printf",
            "x",
            "-delete",
        ),
        timeout_s=COPY_TIMEOUT_S,
    )
    for path in directories:
        _make_directory(tree, path)
    return len(found.stdout)


def _make_directory(tree: Path, path: str) -> None:
    """Make a directory and its parents in a tree that is not trusted."""
    path = os.path.normpath(f"/{path}")
    if path.strip("/") == "":
        return
    with directory_root(tree) as root, root.destination(f"{path}/") as destination, ExitStack() as opened:
        at = destination.directory
        for name in destination.names:
            os.mkdir(name, 0o755, dir_fd=at)
            at = opened.enter_context(opened_directory(at, name))


def tree_size(tree: Path) -> int:
    """The space that its files take, in bytes; what they share with other trees is not taken into account."""
    return int(run_tool(("du", "-sx", "-B1", os.fspath(tree)), timeout_s=COPY_TIMEOUT_S).stdout.split()[0])
