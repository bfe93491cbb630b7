"""The cgroup of a build's RUN steps, in every hierarchy of the host: made with the build's cell, and we see that it goes.

What leads out of their network has one of its own.
"""

import os
from pathlib import Path

from waypoint.kernel.cgroup.group import remove_group
from waypoint.kernel.storage.mounts import read_mounts

__all__ = ["network_cgroup", "remove_build_cgroup"]


def network_cgroup(name: str) -> str:
    return f"{name}.net"


def remove_build_cgroup(name: str) -> None:
    """Remove what a build that was cut off has left; its processes are gone already. None is fine."""
    for mount in read_mounts():
        if mount.fstype in ("cgroup", "cgroup2"):
            for group in (name, network_cgroup(name)):
                _remove(Path(mount.path) / group)


def _remove(cgroup: Path) -> None:
    for directory, _, _ in os.walk(cgroup, topdown=False):
        remove_group(Path(directory))
