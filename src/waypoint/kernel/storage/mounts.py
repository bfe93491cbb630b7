"""Mount the overlay of a branch: the base below, the branch's own changes above. Read the list of mounts."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.syscalls import MNT_DETACH, mount, unmount

__all__ = ["MountEntry", "detach_all", "mount_overlay", "parse_mounts", "read_mounts"]


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path, flags: int = 0) -> None:
    """Mount ``lower`` and ``upper`` as one tree at ``target``.

    ``redirect_dir`` lets a directory of the base be renamed; without it rename(2) answers EXDEV, which
    programs on an ordinary root file system never see. ``xino`` makes inode numbers the same in every branch and
    gives all files one device number, as on an ordinary file system.
    """
    options = ",".join(
        (
            f"lowerdir={_escape(lower, extra=':')}",
            f"upperdir={_escape(upper)}",
            f"workdir={_escape(work)}",
            "redirect_dir=on",
            "xino=on",
        )
    )
    mount("overlay", target, "overlay", flags, options)


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
    """One line of mountinfo: ``root`` of the file system on ``device`` is mounted at ``path``.

    The mount keeps its ``id`` as long as it exists, wherever it is moved. ``options`` are those of the file system.
    """

    id: int
    path: str
    fstype: str
    device: str
    root: str
    is_read_only: bool
    options: str

    @property
    def device_number(self) -> int:
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor))


def read_mounts(process: int | str = "self") -> list[MountEntry]:
    """The mounts in the mount namespace of a process: of several at one path, the last, which is the visible one."""
    return parse_mounts(Path(f"/proc/{process}/mountinfo").read_bytes())


def parse_mounts(mountinfo: bytes) -> list[MountEntry]:
    entries: dict[str, MountEntry] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(b" - ")
        number, _, device, root, point, options = left.split(b" ")[:6]
        path = _unescape(point)
        entries.pop(path, None)
        entries[path] = MountEntry(
            id=int(number),
            path=path,
            fstype=os.fsdecode(right.split(b" ")[0]),
            device=device.decode(),
            root=_unescape(root),
            is_read_only=b"ro" in options.split(b","),
            options=os.fsdecode(right.split(b" ")[-1]),
        )
    return list(entries.values())


def _unescape(raw: bytes) -> str:
    """Decode a path of mountinfo, in which blanks and the like are octal numbers."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes((int(match[1], 8),)), raw))
