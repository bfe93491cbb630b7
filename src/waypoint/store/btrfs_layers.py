"""Layers as btrfs subvolumes: capture and materialize are one ioctl each, whatever the size."""

import os
from contextlib import suppress
from pathlib import Path

from waypoint.kernel.copy.confined import closing
from waypoint.kernel.storage.subvolumes import create_subvolume, delete_subvolume, snapshot_subvolume
from waypoint.kernel.syscalls import sync_file_system

__all__ = ["BtrfsLayers"]


class BtrfsLayers:
    """Implements :class:`waypoint.store.layers.LayerDriver`."""

    name = "btrfs"

    def create(self, layer: Path, numbers: Path | None = None) -> None:
        if numbers is not None and numbers.exists():
            snapshot_subvolume(numbers, layer, read_only=False)
        else:
            create_subvolume(layer)
        (layer / "upper").mkdir(mode=0o755)
        (layer / "work").mkdir(mode=0o755)

    def reserve_inode_numbers(self, tree: Path, numbers: Path) -> None:
        """Each subvolume numbers its files itself, from the highest number in it: the subvolume ``numbers`` has one file,
        with a number above all those of the trees. Several processes may do this at once, and any may be killed.
        """
        with suppress(FileExistsError):
            create_subvolume(numbers)
        with closing(_unnamed_file(tree)) as unnamed:
            wanted = os.fstat(unnamed).st_ino  # the next one of that tree
        number = max(_numbers(numbers), default=0)
        while number < wanted:
            with closing(_unnamed_file(numbers)) as unnamed:  # uses up one number
                number = os.fstat(unnamed).st_ino
                if number >= wanted:
                    _link_unnamed_file(unnamed, numbers, str(number))
        for number in sorted(_numbers(numbers))[:-1]:
            (numbers / str(number)).unlink(missing_ok=True)

    def capture(self, layer: Path, target: Path) -> None:
        snapshot_subvolume(layer, target, read_only=True)

    def materialize(self, saved: Path, layer: Path) -> None:
        snapshot_subvolume(saved, layer, read_only=False)

    def delete(self, layer: Path) -> None:
        delete_subvolume(layer)

    def flush(self, layer: Path) -> None:
        sync_file_system(layer)


def _unnamed_file(directory: Path) -> int:
    return os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)


def _link_unnamed_file(unnamed: int, directory: Path, name: str) -> None:
    with closing(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as at:
        # The link in /proc is followed only if a directory is given.
        os.link(f"/proc/self/fd/{unnamed}", name, dst_dir_fd=at)


def _numbers(directory: Path) -> list[int]:
    return [int(name) for name in os.listdir(directory)]
