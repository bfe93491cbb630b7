"""Find files by their inode numbers, in file systems that cannot be asked for them: /proc, /sys, /dev/pts."""

import os
from collections.abc import Collection
from contextlib import suppress

__all__ = ["find_by_inodes"]

ENTRIES_MAX = 200_000


def find_by_inodes(mount_point: str, inodes: Collection[int]) -> dict[int, str]:
    """The path below a mount point of each of the inodes that is there, the shortest one."""
    found: dict[int, str] = {}
    directories, seen = [""], 0
    for directory in directories:  # the list grows meanwhile
        if len(found) == len(inodes) or seen > ENTRIES_MAX:
            break
        # A process of /proc may have ended.
        with suppress(OSError), os.scandir(f"{mount_point}{directory}") as entries:
            for entry in entries:
                path = f"{directory}/{entry.name}"
                if entry.inode() in inodes:
                    found.setdefault(entry.inode(), path)
                if entry.is_dir(follow_symlinks=False):
                    directories.append(path)
                seen += 1
    return found
