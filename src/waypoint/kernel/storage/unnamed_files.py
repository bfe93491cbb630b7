"""Deleted files that stopped processes still have open or mapped: they take space although they have no name.

Only files on the requested file systems are examined. Examining a file whose server no longer answers fails or never
ends; the kernel shows which file system a file is on without doing so.
"""

import os
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path

from waypoint.kernel.storage.mounts import MountEntry, read_mounts

__all__ = ["unnamed_bytes"]


def unnamed_bytes(pids: Iterable[int], devices: Set[str]) -> int:
    """The space that such files of these processes take on ``devices``, which are written as in mountinfo."""
    processes = list(pids)
    mounts = list(_mounts(processes))
    own = {entry.id for entry in mounts if entry.device in devices}
    foreign = {entry.device for entry in mounts} - devices
    found = {}
    for pid in processes:
        for link in (*_open_files(pid, own), *_deleted_mappings(pid, foreign)):
            with suppress(FileNotFoundError):
                status = os.stat(link)
                device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
                if status.st_nlink == 0 and device in devices:
                    found[device, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _mounts(pids: Iterable[int]) -> Iterator[MountEntry]:
    """The mounts that any of the processes sees."""
    seen = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it was killed
            # The kernel lists what can be reached from the root of the process.
            view = (os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/root"))
            if view not in seen:
                seen.add(view)
                yield from read_mounts(pid)


def _open_files(pid: int, mounts: Set[int]) -> Iterator[str]:
    for number in _names(f"/proc/{pid}/fdinfo"):
        with suppress(FileNotFoundError, ProcessLookupError):
            facts = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split()
            if int(facts[facts.index("mnt_id:") + 1]) in mounts:
                yield f"/proc/{pid}/fd/{number}"


def _deleted_mappings(pid: int, foreign: Set[str]) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            if line.endswith(b" (deleted)"):
                area, _, _, device = line.decode(errors="replace").split()[:4]
                major, minor = (int(number, 16) for number in device.split(":"))
                # Some kernels show the device of the overlay here, others that of its upper layer.
                if f"{major}:{minor}" not in foreign:
                    begin, end = (int(address, 16) for address in area.split("-"))
                    yield f"/proc/{pid}/map_files/{begin:x}-{end:x}"


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, ProcessLookupError):  # it was killed
        return []
