"""Terminals that a process tree uses and whose other end is not in it: a person's window, as a rule.

CRIU saves such a descriptor as *external*, by numbers, and is given the same terminal at the restore. It must be the
same: numbers of terminals are used again, and another person's window must not be written to.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.processes.process_tree import Process

__all__ = ["OuterTerminal", "outer_terminals"]

_CONTROLLING = os.makedev(5, 0)  # /dev/tty, which stands for the terminal of whoever opens it
_PTS_MAJOR = 136


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterTerminal:
    """``key`` is CRIU's name for it. ``made_ns`` tells it from a later one with the same path."""

    key: str
    path: str
    made_ns: int

    def is_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.stat(self.path).st_ctime_ns == self.made_ns
        return False

    def open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def outer_terminals(tree: Iterable[Process]) -> list[OuterTerminal]:
    """The outer terminals of a tree; one that is known by several devices appears once for each."""
    found: dict[str, OuterTerminal] = {}
    inner: set[str] = set()
    for process in tree:
        for path, link in _descriptors(process.pid):
            if link.endswith("/ptmx"):
                inner.add(f"/dev/pts/{_index(process.pid, path)}")
            elif link.startswith("/dev/"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    terminal = _terminal(process, os.stat(path), link)
                    if terminal is not None:
                        found[terminal.key] = terminal
    return [terminal for terminal in found.values() if terminal.path not in inner]


def _terminal(process: Process, status: os.stat_result, link: str) -> OuterTerminal | None:
    if not stat.S_ISCHR(status.st_mode):
        return None
    device = status.st_rdev
    if device == _CONTROLLING:
        device = process.terminal
        link = f"/dev/pts/{os.minor(device)}"
    if os.major(device) not in range(_PTS_MAJOR, _PTS_MAJOR + 8) and not link.startswith("/dev/tty"):
        return None
    key = f"tty[{device:x}:{status.st_dev:x}]"
    return OuterTerminal(key=key, path=link, made_ns=os.stat(link).st_ctime_ns)


def _descriptors(pid: int) -> Iterator[tuple[str, str]]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                path = f"/proc/{pid}/fd/{fd}"
                yield path, os.readlink(path)


def _index(pid: int, path: str) -> str:
    for line in Path(f"/proc/{pid}/fdinfo/{os.path.basename(path)}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "tty-index":
            return value.strip()
    return ""
