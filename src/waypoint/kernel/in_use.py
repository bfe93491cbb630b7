"""Find the processes of this host that use a directory, have a file system mounted, or hold a lock."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.storage.mounts import read_mounts

__all__ = ["Holder", "lock_holders", "mount_holders", "process_name", "processes_below"]

_NAME_MAX = 60
_LINKS = {"cwd": "has its working directory at", "root": "has its root at", "exe": "runs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process, and how it uses a directory, such as ``has its working directory at /x``."""

    pid: int
    name: str
    what: str


def processes_below(directories: Sequence[str]) -> list[Holder]:
    """All other processes whose root, working directory, program or an open file is one of these or below one."""
    found = []
    for pid in _pids():
        what = next(_uses_below(pid, directories), None)
        if what is not None:
            found.append(Holder(pid=pid, name=process_name(pid), what=what))
    return found


def mount_holders(device: str) -> list[Holder]:
    """One process of each other mount namespace where the file system on ``device`` (as in mountinfo) is mounted."""
    seen, found = {_target("/proc/self/ns/mnt")}, []
    for pid in sorted(_pids()):
        namespace = _target(f"/proc/{pid}/ns/mnt")
        if namespace in seen or not namespace:
            continue
        seen.add(namespace)
        with suppress(OSError):  # it has just ended
            path = next((mount.path for mount in read_mounts(pid) if mount.device == device), None)
            if path is not None:
                found.append(Holder(pid=pid, name=process_name(pid), what=f"has it mounted at {path}"))
    return found


def lock_holders(path: Path) -> list[int]:
    """The processes that hold a flock on a file."""
    with suppress(FileNotFoundError):
        major, minor = map(int, _device_of(path).split(":"))
        wanted = f"{major:02x}:{minor:02x}:{os.stat(path).st_ino}"
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # "1: FLOCK ADVISORY WRITE 4711 08:01:123 0 EOF"; a waiting process has "->" as the second word.
        return sorted({int(words[4]) for words in lines if words[1] == "FLOCK" and words[5] == wanted})
    return []


def _device_of(path: Path) -> str:
    """The device of the file system, as /proc/locks shows it. On btrfs a file's own device is that of its subvolume."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())
    finally:
        os.close(fd)
    mount = int(fields["mnt_id"])
    return next(entry.device for entry in read_mounts() if entry.id == mount)


def process_name(pid: int) -> str:
    """The command line of a process, or else its name, cut short; empty if it has ended."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        text = " ".join(os.fsdecode(word) for word in words if word).replace("\n", " ")
        if not text:
            text = Path(f"/proc/{pid}/comm").read_text().strip()
        return text if len(text) <= _NAME_MAX else f"{text[: _NAME_MAX - 1]}…"
    return ""


def _pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            yield int(entry)


def _uses_below(pid: int, directories: Sequence[str]) -> Iterator[str]:
    for link, words in _LINKS.items():
        path = _target(f"/proc/{pid}/{link}")
        if _is_below(path, directories):
            yield f"{words} {path}"
    with suppress(OSError):  # it has just ended, or is not ours to look at
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = _target(f"/proc/{pid}/fd/{fd}")
            if _is_below(path, directories):
                yield f"has {'a directory' if _is_directory(pid, fd) else 'a file'} open: {path}"


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _is_directory(pid: int, fd: str) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.stat(f"/proc/{pid}/fd/{fd}").st_mode)
    return False


def _is_below(path: str, directories: Sequence[str]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)
