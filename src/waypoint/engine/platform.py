"""What every operation of the engine works with on this host."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.cgroup import Cgroup
from waypoint.kernel.criu import Criu, CriuFailed
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

    @contextmanager
    def criu_work(self, session_id: str, name: str) -> Iterator[Path]:
        """A directory for CRIU's log and statistics, kept only when it was CRIU that failed."""
        work = self.layout.work(session_id) / name
        work.mkdir(parents=True)
        try:
            yield work
        except CriuFailed:
            raise
        except BaseException:
            shutil.rmtree(work)
            raise
        shutil.rmtree(work)
