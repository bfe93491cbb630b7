"""Make a tree share the space of its copy, on a file system that supports it."""

import fcntl
import os
import stat
from pathlib import Path

__all__ = ["share_content"]

_FICLONE = 0x40049409
_SMALL_BYTES = 4096  # such files have no blocks of their own


def share_content(copy: Path, tree: Path) -> None:
    """Give each file of ``tree`` the blocks of the file of the same name in ``copy``, a faithful copy of it.

    Nothing visible changes. (Asking the kernel to compare them first takes thirty times as long: it
    reads both from the disk.)
    """
    for directory, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size < _SMALL_BYTES:
                continue
            if status.st_blocks * 512 < status.st_size:  # it has holes, which the copy does not
                continue
            if "security.capability" not in os.listxattr(
                path, follow_symlinks=False
            ):  # a change would drop it
                _share(os.path.join(copy, os.path.relpath(path, tree)), path, status)


def _share(copy: str, path: str, status: os.stat_result) -> None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        source = os.open(copy, os.O_RDONLY | flags)
    except FileNotFoundError:
        return
    try:
        if os.fstat(source).st_size != status.st_size:
            return
        target = os.open(path, os.O_WRONLY | flags)
        try:
            fcntl.ioctl(target, _FICLONE, source)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)
