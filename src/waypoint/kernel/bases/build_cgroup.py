"""The cgroup of a build's RUN steps, in every hierarchy of the host: ENTER_CELL makes it, we remove it.

The process that connects their network to the outside has a cgroup of its own.
"""

import os
from pathlib import Path

from waypoint.kernel.cgroup.group import remove_group
from waypoint.kernel.storage.mounts import read_mounts

__all__ = ["network_cgroup", "remove_build_cgroup"]


def network_cgroup(name: str) -> str:
    return f"{name}.net"


def remove_build_cgroup(name: str) -> None:
    """Remove the cgroups, if any, that an interrupted build has left; its processes have ended already."""
    for mount in read_mounts():
        if mount.fstype in ("cgroup", "cgroup2"):
            for group in (name, network_cgroup(name)):
                _remove(Path(mount.path) / group)


def _remove(cgroup: Path) -> None:
    for directory, _, _ in os.walk(cgroup, topdown=False):
        remove_group(Path(directory))
