"""The saved files of a branch: what a driver that stores them must offer.

A *layer* is a directory with the ``upper`` and ``work`` directories of an overlay. There are two drivers:
:mod:`waypoint.store.btrfs_layers` (a layer is a subvolume, capture is a snapshot) and
:mod:`waypoint.store.directory_layers` (a layer is a directory, capture is a copy).
"""

from pathlib import Path
from typing import Protocol

__all__ = ["LayerDriver"]


class LayerDriver(Protocol):
    """Each method is idempotent where it says so; each raises OSError with the path on failure."""

    name: str

    def create(self, layer: Path, numbers: Path | None = None) -> None:
        """Make an empty layer; with ``numbers``, one over a tree that was given to :meth:`reserve_inode_numbers`."""

    def reserve_inode_numbers(self, tree: Path, numbers: Path) -> None:
        """Make sure that a layer created with ``numbers`` from now on has no inode number in common with ``tree``.

        The kernel takes a tree of the pool and a layer above it for one file system, and shows their numbers unchanged.
        ``cp`` and ``find`` take two files with one number for the same file.
        """

    def capture(self, layer: Path, target: Path) -> None:
        """Save ``layer``, whose overlay is mounted and whose processes are stopped, as ``target``."""

    def materialize(self, saved: Path, layer: Path) -> None:
        """Make ``layer`` a writable copy of what was captured as ``saved``."""

    def delete(self, layer: Path) -> None:
        """Remove a layer, saved or live. Done already is fine."""

    def flush(self, layer: Path) -> None:
        """Write out dirty data, so that a capture soon after has little left to write."""
