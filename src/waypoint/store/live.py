"""As much of the state directory as a command in a running branch needs: which branch it is, and where it runs.

:class:`waypoint.store.catalogue.Catalogue` is the rest. The two are separate because the command line imports
this one for every command (docs/adr/0003-command-line-starts-fast.md).
"""

from __future__ import annotations

import os
import time

from waypoint.errors import NotFound, NotPermitted, PoolNotReady, Suspended
from waypoint.store.database import Database

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LiveCatalogue",
    "catalogue_path",
    "facts_path",
    "limits_path",
    "lock_path",
    "require_set_up",
    "root_path",
]

SESSION_PREFIX_MIN = 4


def catalogue_path(state_dir: str) -> str:
    return f"{state_dir}/catalogue.db"


def facts_path(state_dir: str) -> str:
    """What set-up found out about this host: CRIU's command and version."""
    return f"{state_dir}/host.json"


def lock_path(state_dir: str, name: str) -> str:
    return f"{state_dir}/locks/{name}"


def limits_path(state_dir: str, incarnation: str) -> str:
    """The record of the limits that a live branch can reach; it does not exist if there are none."""
    return f"{state_dir}/limits/{incarnation}"


def root_path(state_dir: str, incarnation: str) -> str:
    """Where the root of a live branch is mounted on the host."""
    return f"{state_dir}/mnt/{incarnation}"


def require_set_up(state_dir: str) -> None:
    """Raise what the user has to settle first: not root, or not set up yet."""
    if os.geteuid() != 0:
        raise NotPermitted("waypoint needs root", hint="run it with sudo")
    if not os.path.exists(facts_path(state_dir)):
        raise PoolNotReady(f"{state_dir} is not set up", hint=f"waypoint setup --state-dir {state_dir}")


class LiveCatalogue(Database):
    """Finds live branches and records what was run in them."""

    def session_id(self, reference: str) -> str:
        """The session with this id, name, or prefix of an id that only it has."""
        rows = self._rows("SELECT id FROM sessions WHERE id = ? OR name = ?", reference, reference)
        if not rows and len(reference) >= SESSION_PREFIX_MIN:
            rows = self._rows("SELECT id FROM sessions WHERE substr(id, 1, ?) = ?", len(reference), reference)
        if len(rows) != 1:
            raise NotFound("session", reference, hint="waypoint list shows the sessions")
        return str(rows[0]["id"])

    def incarnation(self, session_id: str, branch: str) -> str:
        """The current incarnation of a branch. Raises Suspended if it has none."""
        rows = self._rows(
            "SELECT incarnation, is_suspended FROM branches WHERE session_id = ? AND name = ?",
            session_id,
            branch,
        )
        if not rows:
            raise NotFound("branch", branch, hint=f"waypoint list {session_id} shows the branches")
        if rows[0]["is_suspended"]:
            raise Suspended(session_id, branch)
        return str(rows[0]["incarnation"])

    def workspace(self, session_id: str) -> str:
        """Where commands of a session start."""
        return self._of_session(session_id, "workspace")

    def settings_text(self, session_id: str) -> str:
        """What was asked for when the session was created; see waypoint.store.settings_column."""
        return self._of_session(session_id, "settings")

    def _of_session(self, session_id: str, column: str) -> str:
        rows = self._rows("SELECT workspace, settings FROM sessions WHERE id = ?", session_id)
        if not rows:
            raise NotFound("session", session_id, hint="waypoint list shows the sessions")
        return str(rows[0][column])

    def has_unfinished(self) -> bool:
        """Whether an operation is under way, or was cut off."""
        return bool(self._rows("SELECT 1 FROM operations WHERE status IN ('begun', 'published') LIMIT 1"))

    def record(
        self, kind: str, session_id: str, branch: str, total_ms: float, phases_ms: Mapping[str, float]
    ) -> None:
        """Record an operation that changes nothing on the host, such as a command, when it is over."""
        self._write(
            "INSERT INTO operations (kind, session_id, branch, status, began_at, total_ms, phases_ms)"
            " VALUES (?, ?, ?, 'done', ?, ?, ?)",
            kind,
            session_id,
            branch,
            time.time() - total_ms / 1000,
            total_ms,
            _as_json(phases_ms),
        )


def _as_json(phases_ms: Mapping[str, float]) -> str:
    # Names of steps are plain words, so this needs no encoder.
    return "{" + ", ".join(f'"{name}": {spent!r}' for name, spent in phases_ms.items()) + "}"
