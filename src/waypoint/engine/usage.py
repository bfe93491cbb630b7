"""How much of its limits a branch uses now, as the kernel counts it."""

import errno
from pathlib import Path

from waypoint.engine.disk_limit import space_left
from waypoint.engine.platform import Platform
from waypoint.kernel.cgroup.controllers import CpuLimit, MemoryLimit, PidsLimit
from waypoint.model import Limits

__all__ = ["branch_usage"]


def branch_usage(platform: Platform, limits: Limits, incarnation: str) -> dict[str, float]:
    """Figures by name: its processor time, and for each limit what is used of it; empty if it does not run."""
    if not platform.cgroup(incarnation).is_populated():
        return {}
    try:
        return _usage(platform, limits, incarnation)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):  # it has ended while we looked
            return {}
        raise


def _usage(platform: Platform, limits: Limits, incarnation: str) -> dict[str, float]:
    own = platform.cgroup(incarnation).path
    usage: dict[str, float] = {"cpu_s": _figures(own / "cpu.stat")["usage_usec"] / 1e6}

    def group(name: str) -> Path:
        return platform.controllers[name].root / own.name

    if limits.memory_bytes is not None:
        memory = MemoryLimit(group("memory"), platform.controllers["memory"].version)
        usage["memory_bytes"] = memory.usage()
        usage["memory_kills"] = _read_counter(memory.kills)
    if limits.cpus is not None:
        cpu = CpuLimit(group("cpu"), platform.controllers["cpu"].version)
        usage["cpu_throttled_s"] = cpu.throttled_s()
    if limits.pids is not None:
        pids = PidsLimit(group("pids"))
        usage["pids"] = pids.usage()
        usage["pids_refused"] = _read_counter(pids.refusals)
    if limits.disk_bytes is not None:
        usage["disk_bytes"] = limits.disk_bytes - space_left(platform.layout.layer(incarnation))
    return usage


def _read_counter(counter: tuple[Path, str]) -> int:
    file, key = counter
    return _figures(file)[key]


def _figures(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}
