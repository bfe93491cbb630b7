"""Which layer driver goes with which pool."""

from waypoint.store.btrfs_layers import BtrfsLayers
from waypoint.store.directory_layers import OverlayLayers
from waypoint.store.layers import LayerDriver
from waypoint.store.pool import Pool, PoolKind

__all__ = ["driver_for"]


def driver_for(pool: Pool) -> LayerDriver:
    """The driver for ``pool``; decided when the pool was made, never switched."""
    return OverlayLayers() if pool.kind is PoolKind.DIRECTORY else BtrfsLayers()
