"""What every operation of the engine works with on this host."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.cgroup import Cgroup
from waypoint.kernel.criu import Criu
from waypoint.store.layers import LayerDriver
from waypoint.store.layout import Layout

__all__ = ["Platform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The state directory, the layer driver chosen at set-up, CRIU, and where cgroup v2 is mounted."""

    layout: Layout
    layers: LayerDriver
    criu: Criu
    cgroup2: Path

    def cgroup(self, incarnation: str) -> Cgroup:
        """The cgroup of an incarnation; its name also tells which state directory it belongs to."""
        tag = hashlib.sha256(os.fsencode(self.layout.state_dir)).hexdigest()[:8]
        return Cgroup(self.cgroup2 / f"waypoint-{tag}.{incarnation}")
