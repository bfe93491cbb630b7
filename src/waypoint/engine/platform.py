"""What every operation of the engine works with on this host."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.cgroup.controllers import Controller
from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.criu.program import Criu
from waypoint.store.layers import LayerDriver
from waypoint.store.layout import Layout

__all__ = ["Platform", "cgroup_name", "cgroup_of"]


def cgroup_name(layout: Layout, what: str) -> str:
    """The name of a cgroup, which also shows the state directory it belongs to."""
    return f"waypoint-{hashlib.sha256(os.fsencode(layout.state_dir)).hexdigest()[:8]}.{what}"


def cgroup_of(layout: Layout, cgroup2: Path, incarnation: str) -> Cgroup:
    """The cgroup of an incarnation."""
    return Cgroup(cgroup2 / cgroup_name(layout, incarnation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The state directory, the layer driver chosen at set-up, CRIU, and where cgroups and controllers are."""

    layout: Layout
    layers: LayerDriver
    criu: Criu
    cgroup2: Path
    controllers: Mapping[str, Controller]

    def cgroup(self, incarnation: str) -> Cgroup:
        """The cgroup of an incarnation."""
        return cgroup_of(self.layout, self.cgroup2, incarnation)

    def network_cgroup(self, incarnation: str) -> Cgroup:
        """The cgroup of what runs outside an incarnation for its network."""
        own = self.cgroup(incarnation).path
        return Cgroup(own.with_name(f"{own.name}.net"))

    def program_cgroup(self, incarnation: str) -> Cgroup:
        """The cgroup of a host program while it is being restored."""
        own = self.cgroup(incarnation).path
        return Cgroup(own.with_name(f"{own.name}.program"))

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
