"""The overlay of a branch: the base below, the branch's own changes above."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.syscalls import MNT_DETACH, mount, unmount

__all__ = ["MountEntry", "detach_all", "mount_overlay", "read_mounts"]


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount ``lower`` and ``upper`` as one tree at ``target``.

    ``redirect_dir`` lets a directory of the base be renamed; without it rename(2) answers EXDEV, which
    programs on an ordinary root file system never see.
    """
    options = ",".join(
        (
            f"lowerdir={_escape(lower, extra=':')}",
            f"upperdir={_escape(upper)}",
            f"workdir={_escape(work)}",
            "redirect_dir=on",
        )
    )
    mount("overlay", target, "overlay", 0, options)


def detach_all(path: Path) -> None:
    """Unmount everything stacked at ``path``; nothing mounted there is fine."""
    while True:
        try:
            unmount(path, MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # not a mount point / no such path
                return
            raise


def _escape(path: Path, extra: str = "") -> str:
    text = os.fspath(path)
    for character in "\\," + extra:
        text = text.replace(character, "\\" + character)
    return text


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of mountinfo."""

    path: str
    fstype: str


def read_mounts() -> list[MountEntry]:
    """What is mounted in our mount namespace, in the order it was mounted."""
    entries = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        path = left.split(" ")[4].encode().decode("unicode_escape")  # blanks are written as \040
        entries.append(MountEntry(path, right.split(" ")[0]))
    return entries
