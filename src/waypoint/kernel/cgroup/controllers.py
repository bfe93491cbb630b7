"""The cgroup controllers that enforce the limits of a branch: where this host has each, and their files.

A controller works in the one tree of version 2, or, on a host that still mounts version 1 as well, in a tree of
its own. The files differ, what they mean is the same.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import AbilityMissing

__all__ = ["CpuLimit", "Controller", "MemoryLimit", "PidsLimit", "find_controllers"]

NAMES = ("memory", "cpu", "pids")
CPU_PERIOD_US = 100_000
_STEP_BYTES = 4 << 20  # above what is in use and cannot be reclaimed: space for the next small allocation
_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One controller and the tree it works in."""

    name: str
    version: int
    root: Path

    def enable(self) -> None:
        """Give the groups directly below the root this controller's files; in version 1 they always have them."""
        if self.version == 1:
            return
        enabled = self.root / "cgroup.subtree_control"
        if self.name in enabled.read_text().split():
            return
        try:
            enabled.write_text(f"+{self.name}")
        except OSError as error:
            raise AbilityMissing(
                f"the cgroup controller {self.name!r} cannot be enabled in {self.root}: {error.strerror}",
                hint=_remedy(error.errno, self.root),
            ) from error


def _remedy(number: int | None, root: Path) -> str:
    if number == errno.EBUSY:
        # The rule of version 2: below the real root, a group has members or controllers, not both.
        return f"the container's own processes are in {root}: move them into a group below it"
    return f"let this container write to {root}; waypoint doctor shows the controllers"


def find_controllers(mountinfo: str | None = None) -> Mapping[str, Controller]:
    """The controllers that limits need and that this host has, by name."""
    text = (
        Path("/proc/self/mountinfo").read_text(errors="surrogateescape") if mountinfo is None else mountinfo
    )
    found: dict[str, Controller] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        root = Path(left.split(" ")[4])
        present = options.split(" ")[-1].split(",") if kind == "cgroup" else _controllers_of_version_2(root)
        for name in NAMES:
            if name in present:
                # Of a tree that is mounted twice, the first mount is taken, as by find_cgroup2().
                found.setdefault(name, Controller(name=name, version=1 if kind == "cgroup" else 2, root=root))
    return found


def _controllers_of_version_2(root: Path) -> list[str]:
    try:
        return (root / "cgroup.controllers").read_text().split()
    except OSError:  # hidden by another mount, or not readable for us
        return []


class MemoryLimit:
    """The memory of a group, including what the kernel caches of its files; none of it goes to swap."""

    def __init__(self, group: Path, version: int) -> None:
        self.group = group
        self._is_first = version == 1

    @property
    def kills(self) -> tuple[Path, str]:
        """The file and the key in it that counts processes killed at the limit."""
        return self.group / ("memory.oom_control" if self._is_first else "memory.events"), "oom_kill"

    def usage(self) -> int:
        return _number(self.group / ("memory.usage_in_bytes" if self._is_first else "memory.current"))

    def set(self, limit_bytes: int) -> int:
        """Set a limit; return the one in force: higher, just above what is in use, if too little can be reclaimed.

        No process is killed for that. One that exceeds the limit later is.
        """
        return self._set_first(limit_bytes) if self._is_first else self._set_second(limit_bytes)

    def set_with_reserve(self, limit_bytes: int, reserve_bytes: int) -> None:
        """Set a limit of ``reserve_bytes`` above ``limit_bytes``, or above what is in use if that is more; not for long."""
        limit = str(max(limit_bytes, self.usage()) + reserve_bytes)
        if self._is_first:
            self._lift_first()  # the limit that includes swap would have to be raised first
            (self.group / "memory.limit_in_bytes").write_text(limit)
        else:
            (self.group / "memory.max").write_text(limit)

    def _set_first(self, limit_bytes: int) -> int:
        self._lift_first()
        for step in range(1, _STEPS + 1):
            try:
                (self.group / "memory.limit_in_bytes").write_text(str(limit_bytes))
                _write_if_there(self.group / "memory.memsw.limit_in_bytes", str(limit_bytes))
            except OSError as error:
                # The kernel could not reclaim enough; what is in use may grow meanwhile.
                if error.errno != errno.EBUSY or step == _STEPS:
                    raise
                self._lift_first()
                limit_bytes = max(limit_bytes, self.usage()) + step * _STEP_BYTES
            else:
                break
        return limit_bytes

    def _lift_first(self) -> None:
        for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes"):  # never the lower one first
            _write_if_there(self.group / name, "-1")

    def _set_second(self, limit_bytes: int) -> int:
        # To get below memory.max the kernel would kill processes; memory.reclaim only makes it try.
        excess = self.usage() - limit_bytes
        if excess > 0:
            _try_to_reclaim(self.group / "memory.reclaim", excess)
            if self.usage() > limit_bytes:
                limit_bytes = self.usage() + _STEP_BYTES
        _write_if_there(self.group / "memory.swap.max", "0")
        (self.group / "memory.max").write_text(str(limit_bytes))
        return limit_bytes


class PidsLimit:
    """How many processes and threads a group may have."""

    def __init__(self, group: Path) -> None:
        self.group = group

    @property
    def refusals(self) -> tuple[Path, str]:
        """The file and the key in it that counts processes refused at the limit."""
        return self.group / "pids.events", "max"

    def usage(self) -> int:
        return _number(self.group / "pids.current")

    def set(self, limit: int) -> None:
        """If there are more than that many already, they keep running."""
        (self.group / "pids.max").write_text(str(limit))


class CpuLimit:
    """How much time on the processors a group gets."""

    def __init__(self, group: Path, version: int) -> None:
        self.group = group
        self._is_first = version == 1

    def set(self, cpus: float) -> None:
        quota_us = round(cpus * CPU_PERIOD_US)
        if self._is_first:
            (self.group / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
            (self.group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.group / "cpu.max").write_text(f"{quota_us} {CPU_PERIOD_US}")

    def throttled_s(self) -> float:
        """How long its processes had to wait for their next share of time, all added up."""
        figures = dict(line.split() for line in (self.group / "cpu.stat").read_text().splitlines())
        return (
            int(figures["throttled_time"]) / 1e9 if self._is_first else int(figures["throttled_usec"]) / 1e6
        )


def _number(path: Path) -> int:
    return int(path.read_text())


def _write_if_there(path: Path, text: str) -> None:
    """Write to a file if it exists: a kernel that cannot swap, or does not count it, lacks some."""
    if path.exists():
        path.write_text(text)


def _try_to_reclaim(path: Path, excess: int) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # before Linux 5.19
        return
    try:
        os.write(fd, str(excess).encode())
    except OSError as error:
        if error.errno != errno.EAGAIN:  # not all of it could be reclaimed
            raise
    finally:
        os.close(fd)
