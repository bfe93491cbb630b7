"""One cgroup v2 directory for each live branch: which processes belong to it, and how all are ended at once.

The kernel's own list of members is the truth about a branch; recorded pids only say where to look.
"""

import errno
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waypoint.errors import AbilityMissing, EngineError

__all__ = ["Cgroup", "find_cgroup2", "remove_group"]

FREEZE_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 10.0  # a task in uninterruptible disk sleep can hold this up


def find_cgroup2(mountinfo: str | None = None) -> Path:
    """Where cgroup v2 is mounted: ``/sys/fs/cgroup``, or ``…/unified`` on a host that also has v1."""
    text = (
        Path("/proc/self/mountinfo").read_text(errors="surrogateescape") if mountinfo is None else mountinfo
    )
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            return Path(left.split(" ")[4])
    raise AbilityMissing("cgroup v2 is not mounted", hint="mount -t cgroup2 cgroup2 /sys/fs/cgroup")


def remove_group(path: Path) -> None:
    """Remove a directory of any cgroup tree, if it still exists; its members have ended."""
    _remove_group(path, lambda: None)


def _remove_group(path: Path, end_members: Callable[[], None]) -> None:
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        end_members()
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            # The last zombie may still be on its way out after `populated` turned 0.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            os.sched_yield()
        else:
            return


class Cgroup:
    """A directory of the cgroup v2 tree."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def is_populated(self) -> bool:
        """Whether any process is alive in it; a cgroup that does not exist has none."""
        try:
            return "populated 1" in (self.path / "cgroup.events").read_text()
        except FileNotFoundError:
            return False

    def members(self) -> list[int]:
        """The pids of its processes, as the host sees them."""
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def begin_freeze(self) -> None:
        """Begin to freeze the members, without waiting until they have stopped."""
        (self.path / "cgroup.freeze").write_text("1")

    def await_frozen(self) -> None:
        """Wait until all members have stopped."""
        self._wait_until("frozen 1", FREEZE_TIMEOUT_S, "did not stop")

    def thaw(self) -> None:
        """Let frozen members run again. A cgroup that is not frozen or no longer exists is fine."""
        with _unless_removed():
            (self.path / "cgroup.freeze").write_text("0")

    def begin_kill(self) -> None:
        """Kill every member without waiting for their end; a cgroup that does not exist has none."""
        with _unless_removed():
            (self.path / "cgroup.kill").write_text("1")

    def kill(self) -> None:
        """Kill every member and wait until the kernel reports that no process is left."""
        self.begin_kill()
        with _unless_removed():
            self._wait_until("populated 0", KILL_TIMEOUT_S, "did not die")

    def remove(self) -> None:
        """Kill the members and remove the directory, if it still exists."""
        # Kill repeatedly: a command that died may have sent a process here that arrives after the others are dead.
        _remove_group(self.path, self.kill)

    def _wait_until(self, state: str, timeout_s: float, complaint: str) -> None:
        deadline = time.monotonic() + timeout_s
        with open(self.path / "cgroup.events") as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)  # the kernel signals each change of the file this way
            while state not in events.read():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise EngineError(f"processes of {self.path.name} {complaint} within {timeout_s:g} s")
                poll.poll(left * 1000)
                events.seek(0)


@contextmanager
def _unless_removed() -> Iterator[None]:
    """Ignore that someone else has removed the cgroup meanwhile: its members have ended too."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
