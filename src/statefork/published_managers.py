"""The managers by the names under which they were published; :func:`statefork.create_env_manager` makes them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statefork.branches import Branch
from statefork.errors import StateForkError
from statefork.manager import EnvironmentBranch, EnvironmentManager, ForkableEnvironmentManager

if TYPE_CHECKING:
    from waypoint import Session

__all__ = [
    "CRIUAttachManager",
    "CRIUBuildManager",
    "ContainerAttachManager",
    "ContainerBuildManager",
    "FireAttachManager",
    "FireBuildManager",
    "GvisorAttachManager",
    "GvisorBuildManager",
    "HybridAttachManager",
    "HybridBuildManager",
    "WaypointAttachManager",
    "WaypointBuildManager",
    "WaypointFork",
]


class CRIUBuildManager(ForkableEnvironmentManager):
    """A process tree over the host's own files, saved by CRIU."""


class CRIUAttachManager(EnvironmentManager):
    """A process tree that someone else has started, saved by CRIU."""


class GvisorBuildManager(ForkableEnvironmentManager):
    """Sandboxes of gVisor, from a directory with a Dockerfile or a root file system."""


class GvisorAttachManager(ForkableEnvironmentManager):
    """A container of runsc that someone else made."""


class FireBuildManager(ForkableEnvironmentManager):
    """Machines of Firecracker, made here."""


class FireAttachManager(EnvironmentManager):
    """A machine of Firecracker that someone else made."""


@dataclass(frozen=True, slots=True)
class WaypointFork(EnvironmentBranch):
    """A branch of a session of Waypoint: the host's pid of its init, the socket of that, and how many seconds it took
    to make the branch (0 for ``main``)."""

    pid: int | None = None
    socket: str = ""
    restore_duration: float = 0.0


class WaypointBuildManager(ForkableEnvironmentManager):
    """A session of Waypoint, from a Dockerfile or a directory."""

    @property
    def session_id(self) -> str:
        return _session(self).id

    @property
    def work_dir(self) -> str:
        """Where the files of the branch ``main`` are seen on the host."""
        return str(_session(self).directory)

    def _view(self, branch: Branch) -> WaypointFork:
        try:
            pid = self.core.backend.process_id(branch.instance)
        except StateForkError:  # someone has destroyed it
            pid = None
        took = [
            entry.elapsed_time
            for entry in self.stats.entries
            if (entry.operation, entry.branch_id) == ("fork", branch.id)
        ]
        return WaypointFork(
            branch.id,
            branch.base_snapshot_id,
            self._status(branch),
            pid=pid,
            socket="" if pid is None else f"/proc/{pid}/root/.waypoint/sock",
            restore_duration=took[-1] if took else 0.0,
        )


class WaypointAttachManager(WaypointBuildManager):
    """A session of Waypoint that someone else made."""


def _session(manager: ForkableEnvironmentManager) -> "Session":
    from statefork.backends.waypoint import WaypointBackend

    backend = manager.core.backend
    assert isinstance(backend, WaypointBackend)  # the factory makes these two for no other
    return backend.session


class ContainerBuildManager(ForkableEnvironmentManager):
    """Containers of docker or podman, from a directory with a Dockerfile."""


class ContainerAttachManager(ForkableEnvironmentManager):
    """A container of docker or podman that someone else made."""


class HybridBuildManager(ForkableEnvironmentManager):
    """Containers of podman that are saved with their processes, from a directory with a Dockerfile."""


class HybridAttachManager(ForkableEnvironmentManager):
    """A container of podman that someone else made, saved with its processes."""
