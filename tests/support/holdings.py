"""What an environment of StateFork uses on the host: cgroups, mounts, processes, all with its tag in their names."""

import os
from pathlib import Path

from waypoint.kernel.cgroup.group import find_cgroup2
from waypoint.kernel.storage.mounts import read_mounts

__all__ = ["held_by"]


def held_by(tag: str) -> list[str]:
    """List what the environment with this tag has outside its own directory."""
    cgroups = [path.name for path in find_cgroup2().glob(f"*{tag}*")]
    mounts = [mount.path for mount in read_mounts() if tag in mount.path]
    processes = [entry for entry in os.listdir("/proc") if entry.isdigit() and tag in _command_line(entry)]
    directories = [str(path) for path in (Path("/run/statefork") / tag,) if path.exists()]
    return [*cgroups, *mounts, *processes, *directories]


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
