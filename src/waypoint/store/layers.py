"""The saved files of a branch: what a way of storing them must offer.

A *layer* is a directory with the ``upper`` and ``work`` directories of an overlay. There are two drivers:
:mod:`waypoint.store.btrfs` (a layer is a subvolume, capture is a snapshot) and
:mod:`waypoint.store.overlay` (a layer is a directory, capture is a copy).
"""

from pathlib import Path
from typing import Protocol

__all__ = ["LayerDriver"]


class LayerDriver(Protocol):
    """Each method is idempotent where it says so; each raises OSError with the path on failure."""

    name: str

    def create(self, layer: Path) -> None:
        """Make an empty layer."""

    def capture(self, layer: Path, target: Path) -> None:
        """Save ``layer``, whose overlay is mounted and whose processes are stopped, as ``target``."""

    def materialize(self, saved: Path, layer: Path) -> None:
        """Make ``layer`` a writable copy of what was captured as ``saved``."""

    def delete(self, layer: Path) -> None:
        """Remove a layer, saved or live. Done already is fine."""

    def flush(self, layer: Path) -> None:
        """Write out what is dirty, so that a capture soon after has little left to write."""
