"""The catalogue: sessions, branches, checkpoints and operations, in one SQLite file.

A change is recorded as *begun* before the kernel is touched, and the rows that make its result visible are
written together with its end in one transaction. So readers never see anything half-made, and what a crash
left behind is found among the operations that are begun and whose lock nobody holds
(:mod:`waypoint.session.lifecycle.recovery`).
"""

import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from waypoint.errors import AlreadyExists, NotFound
from waypoint.model import (
    Base,
    BaseKind,
    BranchRecord,
    CheckpointKind,
    CheckpointRecord,
    ExtraMount,
    OperationKind,
    OperationRecord,
    OperationStatus,
    PortRecord,
    SessionRecord,
)
from waypoint.store.base_catalogue import BaseCatalogue
from waypoint.store.settings_column import decode_settings, encode_settings

__all__ = ["Catalogue"]


class Catalogue(BaseCatalogue):
    """The whole catalogue."""

    # -- sessions

    def add_session(self, session: SessionRecord) -> None:
        try:
            self._write(
                "INSERT INTO sessions (id, name, base_kind, base_path, extra_mounts, workspace, created_at,"
                " is_open, settings) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)",
                session.id,
                session.name,
                session.base.kind,
                str(session.base.path),
                json.dumps([[mount.key, mount.path] for mount in session.base.extra_mounts]),
                session.workspace,
                session.created_at,
                encode_settings(session.settings),
            )
        except sqlite3.IntegrityError as error:
            raise AlreadyExists("session", session.name or session.id) from error

    def sessions(self) -> list[SessionRecord]:
        return [_session(row) for row in self._rows("SELECT * FROM sessions ORDER BY created_at, id")]

    def session(self, reference: str) -> SessionRecord:
        """By id, by name, or by a prefix of the id that only one session has."""
        return _session(self._rows("SELECT * FROM sessions WHERE id = ?", self.session_id(reference))[0])

    def close_session(self, session_id: str) -> None:
        """Let nothing be added to the session from here on; its removal has begun."""
        self._write("UPDATE sessions SET is_open = 0 WHERE id = ?", session_id)

    def forget_session(self, session_id: str) -> None:
        with self.transaction():
            self._write("DELETE FROM ports WHERE session_id = ?", session_id)
            self._write("DELETE FROM programs WHERE session_id = ?", session_id)
            self._write("DELETE FROM branches WHERE session_id = ?", session_id)
            self._write("DELETE FROM checkpoints WHERE session_id = ?", session_id)
            self._write("DELETE FROM sessions WHERE id = ?", session_id)
            self._write(
                "DELETE FROM operations WHERE session_id = ? AND status NOT IN ('begun', 'published')",
                session_id,
            )

    def next_number(self, session_id: str) -> int:
        """A number for a default name, never given twice in a session."""
        rows = self._rows(
            "UPDATE sessions SET numbers_given = numbers_given + 1 WHERE id = ? RETURNING numbers_given",
            session_id,
        )
        return int(rows[0][0])

    # -- branches

    def put_branch(self, branch: BranchRecord) -> None:
        """Insert a branch, or give an existing one its new incarnation and head, or mark it as suspended."""
        self._write(
            "INSERT INTO branches (session_id, name, incarnation, init_pid, head, created_at, is_suspended)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, name) DO UPDATE SET"
            " incarnation = excluded.incarnation, init_pid = excluded.init_pid, head = excluded.head,"
            " is_suspended = excluded.is_suspended",
            branch.session_id,
            branch.name,
            branch.incarnation,
            branch.init_pid,
            branch.head,
            branch.created_at,
            int(branch.is_suspended),
        )

    def set_head(self, session_id: str, branch: str, checkpoint_id: str) -> None:
        self._write(
            "UPDATE branches SET head = ? WHERE session_id = ? AND name = ?",
            checkpoint_id,
            session_id,
            branch,
        )

    def remove_branch(self, session_id: str, name: str) -> None:
        self._write("DELETE FROM ports WHERE session_id = ? AND branch = ?", session_id, name)
        self._write("DELETE FROM branches WHERE session_id = ? AND name = ?", session_id, name)

    def branches(self, session_id: str) -> list[BranchRecord]:
        rows = self._rows("SELECT * FROM branches WHERE session_id = ? ORDER BY created_at, name", session_id)
        return [_branch(row) for row in rows]

    def branch(self, session_id: str, name: str) -> BranchRecord:
        rows = self._rows("SELECT * FROM branches WHERE session_id = ? AND name = ?", session_id, name)
        if not rows:
            raise NotFound("branch", name, hint=f"waypoint list {session_id} shows the branches")
        return _branch(rows[0])

    # -- port forwards, from the host's loopback to branches

    def add_port(self, port: PortRecord) -> None:
        """Raises AlreadyExists if the branch's port, or the host's, is forwarded already."""
        self.branch(port.session_id, port.branch)
        try:
            self._write(
                "INSERT INTO ports (session_id, branch, port, host_port) VALUES (?, ?, ?, ?)",
                port.session_id,
                port.branch,
                port.port,
                port.host_port,
            )
        except sqlite3.IntegrityError as error:
            if "host_port" in str(error):
                raise AlreadyExists("exposed port of the host", str(port.host_port)) from error
            raise AlreadyExists("exposed port", f"{port.branch} {port.port}") from error

    def remove_port(self, port: PortRecord) -> None:
        self._write(
            "DELETE FROM ports WHERE session_id = ? AND branch = ? AND port = ?",
            port.session_id,
            port.branch,
            port.port,
        )

    def host_ports(self) -> set[int]:
        """The ports of the host that are forwarded to a branch of any session."""
        return {int(row["host_port"]) for row in self._rows("SELECT host_port FROM ports")}

    def ports(self, session_id: str) -> list[PortRecord]:
        rows = self._rows("SELECT * FROM ports WHERE session_id = ? ORDER BY branch, port", session_id)
        return [PortRecord(**dict(row)) for row in rows]

    def live_ports(self, session_id: str) -> list[PortRecord]:
        """The port forwards of branches that are not suspended."""
        live = {branch.name for branch in self.branches(session_id) if not branch.is_suspended}
        return [port for port in self.ports(session_id) if port.branch in live]

    # -- host programs that were saved or restored

    def note_programs(self, session_id: str, started: Mapping[int, int], boot: str) -> None:
        """Record processes by pid and start time, which together identify a process until a reboot."""
        for pid, moment in started.items():
            self._write(
                "INSERT OR REPLACE INTO programs (session_id, pid, started, boot) VALUES (?, ?, ?, ?)",
                session_id,
                pid,
                moment,
                boot,
            )

    def programs(self, session_id: str, boot: str) -> dict[int, int]:
        """When each process was started, by pid."""
        query = "SELECT pid, started FROM programs WHERE session_id = ? AND boot = ?"
        return {row["pid"]: row["started"] for row in self._rows(query, session_id, boot)}

    # -- checkpoints

    def add_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        try:
            self._write(
                "INSERT INTO checkpoints (id, session_id, name, parent, branch, created_at, memory_bytes, kind)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                checkpoint.id,
                checkpoint.session_id,
                checkpoint.name,
                checkpoint.parent,
                checkpoint.branch,
                checkpoint.created_at,
                checkpoint.memory_bytes,
                checkpoint.kind,
            )
        except sqlite3.IntegrityError as error:
            if "FOREIGN KEY" in str(error):
                raise NotFound("session", checkpoint.session_id) from error
            raise AlreadyExists("checkpoint", checkpoint.name) from error

    def checkpoints(self, session_id: str) -> list[CheckpointRecord]:
        rows = self._rows(
            "SELECT * FROM checkpoints WHERE session_id = ? ORDER BY created_at, id", session_id
        )
        return [_checkpoint(row) for row in rows]

    def checkpoint(self, session_id: str, name: str) -> CheckpointRecord:
        rows = self._rows("SELECT * FROM checkpoints WHERE session_id = ? AND name = ?", session_id, name)
        if not rows:
            raise NotFound("checkpoint", name, hint=f"waypoint list {session_id} shows the checkpoints")
        return _checkpoint(rows[0])

    def has_name(self, session_id: str, name: str) -> bool:
        """Whether a branch or a checkpoint of the session has this name; they share one set of names."""
        return bool(
            self._rows(
                "SELECT 1 FROM branches WHERE session_id = ? AND name = ?"
                " UNION SELECT 1 FROM checkpoints WHERE session_id = ? AND name = ?",
                session_id,
                name,
                session_id,
                name,
            )
        )

    # -- operations

    def begin(
        self,
        kind: OperationKind,
        session_id: str,
        branch: str,
        *,
        incarnation: str | None = None,
        old_incarnation: str | None = None,
        checkpoint: str | None = None,
    ) -> OperationRecord:
        """Record that an operation starts now, and what it is about to make or remove."""
        began_at = time.time()
        number = self._write(
            "INSERT INTO operations (kind, session_id, branch, status, began_at, incarnation, old_incarnation,"
            " checkpoint) VALUES (?, ?, ?, 'begun', ?, ?, ?, ?)",
            kind,
            session_id,
            branch,
            began_at,
            incarnation,
            old_incarnation,
            checkpoint,
        )
        return OperationRecord(
            id=number,
            kind=kind,
            session_id=session_id,
            branch=branch,
            status=OperationStatus.BEGUN,
            began_at=began_at,
            total_ms=None,
            incarnation=incarnation,
            old_incarnation=old_incarnation,
            checkpoint=checkpoint,
        )

    def end(
        self,
        operation: int,
        status: OperationStatus,
        *,
        total_ms: float | None = None,
        phases_ms: Mapping[str, float] | None = None,
    ) -> None:
        self._write(
            "UPDATE operations SET status = ?, total_ms = ?, phases_ms = ? WHERE id = ?",
            status,
            total_ms,
            json.dumps(dict(phases_ms or {})),
            operation,
        )

    def unfinished(self) -> list[OperationRecord]:
        rows = self._rows("SELECT * FROM operations WHERE status IN ('begun', 'published') ORDER BY id")
        return [_operation(row) for row in rows]

    def operation(self, operation: int) -> OperationRecord:
        return _operation(self._rows("SELECT * FROM operations WHERE id = ?", operation)[0])

    def newest_operation(self) -> int:
        """The number of the newest operation: later ones have higher numbers."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM operations")[0][0])

    def operations_after(self, operation: int) -> list[OperationRecord]:
        return [
            _operation(row)
            for row in self._rows("SELECT * FROM operations WHERE id > ? ORDER BY id", operation)
        ]

    def last_operation(self, session_id: str, kind: OperationKind, branch: str) -> OperationRecord:
        query = "SELECT * FROM operations WHERE session_id = ? AND kind = ? AND branch = ? ORDER BY id DESC LIMIT 1"
        return _operation(self._rows(query, session_id, kind, branch)[0])

    def makers_of_branches(self, session_id: str) -> dict[str, OperationRecord]:
        """The operations that started the branches of a session, by incarnation."""
        query = (
            "SELECT * FROM operations WHERE session_id = ? AND incarnation IN"
            " (SELECT incarnation FROM branches WHERE session_id = ?) ORDER BY id DESC"
        )
        found = map(_operation, self._rows(query, session_id, session_id))
        # The oldest comes last and stays: a promotion is later.
        return {operation.incarnation or "": operation for operation in found}

    def maker_of_checkpoint(self, checkpoint: CheckpointRecord) -> OperationRecord | None:
        """The operation that saved a checkpoint; later ones may have restored it."""
        query = "SELECT * FROM operations WHERE session_id = ? AND checkpoint = ? ORDER BY id LIMIT 1"
        return next(map(_operation, self._rows(query, checkpoint.session_id, checkpoint.id)), None)

    def operations(self, session_id: str) -> list[OperationRecord]:
        rows = self._rows("SELECT * FROM operations WHERE session_id = ? ORDER BY id", session_id)
        return [_operation(row) for row in rows]


def _session(row: sqlite3.Row) -> SessionRecord:
    mounts = tuple(ExtraMount(key=key, path=path) for key, path in json.loads(row["extra_mounts"]))
    return SessionRecord(
        id=row["id"],
        name=row["name"],
        base=Base(kind=BaseKind(row["base_kind"]), path=Path(row["base_path"]), extra_mounts=mounts),
        workspace=row["workspace"],
        created_at=row["created_at"],
        is_open=bool(row["is_open"]),
        settings=decode_settings(row["settings"]),
    )


def _branch(row: sqlite3.Row) -> BranchRecord:
    fields = dict(row)
    return BranchRecord(**{**fields, "is_suspended": bool(fields["is_suspended"])})


def _checkpoint(row: sqlite3.Row) -> CheckpointRecord:
    fields = dict(row)
    return CheckpointRecord(**{**fields, "kind": CheckpointKind(fields["kind"])})


def _operation(row: sqlite3.Row) -> OperationRecord:
    fields = dict(row)
    fields["kind"] = OperationKind(fields["kind"])
    fields["status"] = OperationStatus(fields["status"])
    fields["phases_ms"] = json.loads(fields["phases_ms"])
    return OperationRecord(**fields)
