"""Layers as btrfs subvolumes: capture and materialize are one ioctl each, whatever the size."""

from pathlib import Path

from waypoint.kernel.btrfs import create_subvolume, delete_subvolume, snapshot_subvolume
from waypoint.kernel.syscalls import sync_file_system

__all__ = ["BtrfsLayers"]


class BtrfsLayers:
    """Implements :class:`waypoint.store.layers.LayerDriver`."""

    name = "btrfs"

    def create(self, layer: Path) -> None:
        create_subvolume(layer)
        (layer / "upper").mkdir(mode=0o755)
        (layer / "work").mkdir(mode=0o755)

    def capture(self, layer: Path, target: Path) -> None:
        snapshot_subvolume(layer, target, read_only=True)

    def materialize(self, saved: Path, layer: Path) -> None:
        snapshot_subvolume(saved, layer, read_only=False)

    def delete(self, layer: Path) -> None:
        delete_subvolume(layer)

    def flush(self, layer: Path) -> None:
        sync_file_system(layer)
