"""What every operation on a session needs: the catalogue, the locks, and the platform underneath."""

import json
import os
from functools import cached_property
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.errors import (
    AbilityMissing,
)
from waypoint.kernel.cgroup.controllers import find_controllers
from waypoint.kernel.cgroup.group import find_cgroup2
from waypoint.kernel.criu.program import Criu
from waypoint.model import BranchRecord
from waypoint.store.catalogue import Catalogue
from waypoint.store.drivers import driver_for
from waypoint.store.layout import Layout
from waypoint.store.live import require_set_up
from waypoint.store.lock import branch_lock, gate_lock, terminal_lock
from waypoint.store.pool import open_pool, unmount_pool

__all__ = ["BASES", "Context", "criu_tool", "launcher_path", "preload_path"]

BASES = "bases"
"""Stands in place of a session id in the records and locks of operations on bases."""

_BUILT = Path(__file__).parent.parent / "_bin"


def launcher_path() -> Path:
    """Our static helper, built with the package."""
    return _BUILT / "waypoint-init"


def preload_path() -> Path:
    """The library that is loaded into CRIU (native/preload), built with the package."""
    return _BUILT / "criu-preload.so"


def criu_tool(layout: Layout, command: tuple[str, ...], version: str) -> Criu:
    """CRIU as set-up found it, with the helper and the library that were built with the package."""
    return Criu(
        command=command,
        launcher=launcher_path(),
        preload=preload_path(),
        kdat=layout.kdat(version),
    )


class Context:
    """The open state directory. Cheap to make: the pool and CRIU are looked at only when needed."""

    def __init__(self, state_dir: Path) -> None:
        require_set_up(str(state_dir))
        self.layout = Layout(state_dir)
        self.catalogue = Catalogue(self.layout.catalogue)

    @cached_property
    def platform(self) -> Platform:
        """Raises AbilityMissing if CRIU no longer exists. After a reboot, mounts the pool and warms CRIU again."""
        try:
            facts = json.loads(self.layout.host_facts.read_text())
            command, version = tuple(facts["criu_command"]), facts["criu_version"]
        except (ValueError, KeyError, TypeError) as error:
            what = f"{self.layout.host_facts} is not as set-up wrote it: {error}"
            raise AbilityMissing(what, hint="run waypoint setup again") from error
        if not Path(command[0]).exists():
            raise AbilityMissing(f"CRIU no longer exists: {command[0]}", hint="run waypoint setup again")
        criu = criu_tool(self.layout, command, version)
        if not criu.is_warm():
            criu.warm()
        return Platform(
            layout=self.layout,
            layers=driver_for(open_pool(self.layout.state_dir)),
            criu=criu,
            cgroup2=find_cgroup2(),
            controllers=find_controllers(),
        )

    def unmount_pool(self) -> None:
        """Unmount the pool; the platform is read again when it is needed."""
        unmount_pool(self.layout.state_dir)
        vars(self).pop("platform", None)

    # -- locks; see waypoint.store.lock for what each is for

    def branch_lock(self, session_id: str, branch: str) -> Path:
        """The lock of a branch; without a branch, the session's own."""
        return self.layout.lock(branch_lock(session_id, branch))

    def gate_lock(self, session_id: str, branch: str) -> Path:
        return self.layout.lock(gate_lock(session_id, branch))

    def terminal_locks(self, session_id: str, branch: str) -> list[Path]:
        """The locks of all terminals in which a command was run."""
        stem = terminal_lock(session_id, branch, "")
        return [path for path in self.layout.lock("").iterdir() if path.name.startswith(stem)]

    def remove_locks(self, session_id: str, branch: str) -> None:
        """Remove the lock files of a branch that no longer exists; a process that waits for one notices."""
        stem = branch_lock(session_id, branch)
        for path in self.layout.lock("").glob(f"{stem}*"):
            rest = path.name.removeprefix(stem)
            if rest in ("", ":gate") or rest.startswith(":terminal:"):
                path.unlink(missing_ok=True)

    # -- sessions and branches

    def has_session(self, session_id: str) -> bool:
        return any(session.id == session_id for session in self.catalogue.sessions())

    def has_branch(self, session_id: str, branch: str) -> bool:
        return any(record.name == branch for record in self.catalogue.branches(session_id))

    def is_running(self, branch: BranchRecord) -> bool:
        return self.platform.cgroup(branch.incarnation).is_populated()

    def point_live_link(self, session_id: str, branch: str, incarnation: str) -> None:
        """Point the branch's stable path to the mount of its present incarnation."""
        link = self.layout.live(session_id, branch)
        link.parent.mkdir(parents=True, exist_ok=True)
        draft = link.with_name(f".{link.name}.new")
        draft.unlink(missing_ok=True)
        draft.symlink_to(self.layout.mount(incarnation))
        os.rename(draft, link)
