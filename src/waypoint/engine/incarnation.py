"""The parts of a live branch on the host: its layer, its mounts, its cgroup.

All of them are named by the *incarnation*, a random id, so two incarnations never share anything and a new
one can be built beside the one it will replace. :func:`destroy` removes whatever of it exists; recovery
needs to know nothing but the id.
"""

import os
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.kernel.mounts import detach_all, mount_overlay
from waypoint.model import Base

__all__ = ["add_mount_layers", "destroy", "external_mounts", "mount_root"]


def add_mount_layers(platform: Platform, base: Base, incarnation: str) -> None:
    """Make room in the layer for the changes to the base's extra mounts."""
    for extra in base.extra_mounts:
        for part in ("upper", "work"):
            (platform.layout.layer(incarnation) / "mounts" / extra.key / part).mkdir(parents=True)


def mount_root(platform: Platform, base: Base, incarnation: str) -> Path:
    """Mount the branch's root: base below, layer above; then each extra mount inside it."""
    layer = platform.layout.layer(incarnation)
    root = platform.layout.mount(incarnation)
    root.mkdir(parents=True, exist_ok=True)
    mount_overlay(base.path, layer / "upper", layer / "work", root)
    for extra in base.extra_mounts:
        parts = layer / "mounts" / extra.key
        mount_overlay(Path(extra.path), parts / "upper", parts / "work", root / extra.path.lstrip("/"))
    return root


def external_mounts(base: Base, root: Path | None) -> list[str]:
    """How CRIU is told that the extra mounts are ours: to a dump their names, to a restore their places."""
    if root is None:
        return [f"mnt[{extra.path}]:{extra.key}" for extra in base.extra_mounts]
    return [f"mnt[{extra.key}]:{root / extra.path.lstrip('/')}" for extra in base.extra_mounts]


def destroy(platform: Platform, incarnation: str) -> None:
    """Kill its processes and remove its mounts and its layer. Done already, in part or whole, is fine."""
    platform.cgroup(incarnation).remove()
    root = platform.layout.mount(incarnation)
    detach_all(root)  # a lazy unmount takes the mounts below along
    if os.path.lexists(root):
        root.rmdir()
    platform.layers.delete(platform.layout.layer(incarnation))
