"""One cgroup v2 directory for each live branch: who belongs to it, and how all of it ends at once.

The kernel's own list of members is the truth about a branch; recorded pids only say where to look.
"""

import errno
import os
import select
import time
from pathlib import Path

from waypoint.errors import AbilityMissing, EngineError

__all__ = ["Cgroup", "find_cgroup2"]

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

    def kill(self) -> None:
        """Kill every member and wait until the kernel says that none is left."""
        try:
            (self.path / "cgroup.kill").write_text("1")
            self._wait_until_empty()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # someone else has removed it meanwhile
                raise

    def remove(self) -> None:
        """Kill the members and remove the directory; done already is fine."""
        self.kill()
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                # The last zombie may still be on its way out after `populated` turned 0.
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                os.sched_yield()
            else:
                return

    def _wait_until_empty(self) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT_S
        with open(self.path / "cgroup.events") as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)  # the kernel signals each change of the file so
            while "populated 0" not in events.read():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise EngineError(
                        f"processes of {self.path.name} did not die within {KILL_TIMEOUT_S:g} s"
                    )
                poll.poll(left * 1000)
                events.seek(0)
