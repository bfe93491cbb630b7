"""The overlays that a branch consists of: one for its root, and one for each extra mount."""

import os
from collections.abc import Mapping
from pathlib import Path

from waypoint.engine.extra_mounts import find_mount_points, mount_layers
from waypoint.engine.platform import Platform
from waypoint.kernel.criu.watches import Overlay
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.model import BranchRecord, SessionRecord

__all__ = ["Overlay", "overlays_of", "root_devices"]

_ROOT = "/"  # the name of the root's; the others have the keys of their mounts


def overlays_of(platform: Platform, session: SessionRecord, branch: BranchRecord) -> list[Overlay]:
    """The overlays of a running branch."""
    layer = platform.layout.layer(branch.incarnation)
    bases = {extra.key: Path(extra.path) for extra in session.base.extra_mounts}
    named = {mount_point: key for key, mount_point in find_mount_points(platform, branch).items()}
    overlays = []
    for entry in read_mounts(branch.init_pid):
        if entry.path == "/":
            name, upper, lower = _ROOT, layer / "upper", session.base.path
        elif entry.path in named:
            name = named[entry.path]
            upper, lower = mount_layers(layer) / name / "upper", bases[name]
        else:
            continue
        overlays.append(
            Overlay(name=name, mount_point=entry.path, device=entry.device_number, upper=upper, lower=lower)
        )
    return overlays


def root_devices(root: Path, mount_points: Mapping[str, str]) -> dict[str, int]:
    """The device numbers, by the names of the overlays, of a branch that the host has at ``root``."""
    real = os.path.realpath(root)
    paths = {real: _ROOT, **{f"{real}{path}": key for key, path in mount_points.items()}}
    return {paths[entry.path]: entry.device_number for entry in read_mounts() if entry.path in paths}
