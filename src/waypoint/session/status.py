"""The status of a session at one moment: its settings, its checkpoints, its branches and their state.

The catalogue is read in one transaction. Then the kernel is asked whether the very incarnations that were read run: so
a pid and a state are never from two sides of a restore.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from waypoint.engine.usage import branch_usage
from waypoint.model import BranchRecord, CheckpointKind, CheckpointRecord, OperationRecord, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.store.image_names import short_name

__all__ = [
    "BranchState",
    "BranchStatus",
    "CheckpointStatus",
    "SessionStatus",
    "files_bytes",
    "read_status",
    "read_statuses",
]


class BranchState(StrEnum):
    RUNNING = "running"
    SUSPENDED = "suspended"
    DEAD = "dead"  # its processes have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """``saved_pid`` is the pid of the process that it restores: of a host program, or 1 for process 1 of the branch;
    None if it restores no process. ``files_bytes`` is the size of its files over the base, if that was asked for."""

    record: CheckpointRecord
    parent: str | None
    saved_pid: int | None
    files_bytes: int | None = None

    @property
    def name(self) -> str:
        return self.record.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStatus:
    """``head`` is the name of its head. ``directory`` is where the host sees its files, also after a restore;
    ``mount`` and ``layer`` are those of its present incarnation. ``made_by`` is the operation that made that."""

    record: BranchRecord
    state: BranchState
    head: str | None
    directory: Path
    mount: Path
    layer: Path
    usage: Mapping[str, float]
    made_by: OperationRecord | None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def pid(self) -> int | None:
        """The host's pid of its process 1; None if that has ended, as another process may have the number by now."""
        return self.record.init_pid if self.state is BranchState.RUNNING else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """``base_name`` is the base as people call it: if it is stored in the pool, its name or the beginning of its id,
    else its path. Checkpoints and branches are in the order they were made."""

    record: SessionRecord
    base_name: str
    directory: Path
    checkpoints: tuple[CheckpointStatus, ...]
    branches: tuple[BranchStatus, ...]

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_suspended(self) -> bool:
        """Whether all of its branches are suspended."""
        return all(branch.state is BranchState.SUSPENDED for branch in self.branches)

    @property
    def main(self) -> BranchStatus | None:
        return next((branch for branch in self.branches if branch.name == MAIN), None)

    def checkpoint(self, name: str) -> CheckpointStatus | None:
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.name == name), None)

    def ancestry(self, checkpoint_id: str | None) -> list[str]:
        """The names of a checkpoint and of those it came from, newest first."""
        records = {checkpoint.record.id: checkpoint.record for checkpoint in self.checkpoints}
        names: list[str] = []
        while checkpoint_id in records:
            names.append(records[checkpoint_id].name)
            checkpoint_id = records[checkpoint_id].parent
        return names


def read_status(context: Context, reference: str, *, with_files: bool = False) -> SessionStatus:
    """The status of a session by id, name, or a prefix of its id. Raises NotFound."""
    with context.catalogue.reading():
        records = _Records(context, context.catalogue.session(reference))
    return records.status(with_files=with_files)


def read_statuses(context: Context) -> list[SessionStatus]:
    """The status of every session."""
    with context.catalogue.reading():
        found = [_Records(context, session) for session in context.catalogue.sessions()]
    return [records.status(with_files=False) for records in found]


def files_bytes(context: Context, checkpoint_id: str) -> int:
    """The size of the files that the branch had over its base by then; checkpoints share what they have in common."""
    layer = context.layout.checkpoint_layer(checkpoint_id)
    total = 0
    for directory, below, files in os.walk(layer):
        if ".waypoint" in below and directory == str(layer / "upper"):
            below.remove(".waypoint")  # our own init
        total += sum(os.lstat(os.path.join(directory, file)).st_blocks * 512 for file in files)
    return total


class _Records:
    """What the catalogue knows of a session."""

    def __init__(self, context: Context, session: SessionRecord) -> None:
        catalogue = context.catalogue
        self._context = context
        self._session = session
        self._branches = catalogue.branches(session.id)
        self._checkpoints = catalogue.checkpoints(session.id)
        self._makers = catalogue.makers_of_branches(session.id)
        self._base_name = _base_name(context, session.base.path)

    def status(self, *, with_files: bool) -> SessionStatus:
        """Add what the kernel and the pool say of it."""
        names = {checkpoint.id: checkpoint.name for checkpoint in self._checkpoints}
        return SessionStatus(
            record=self._session,
            base_name=self._base_name,
            directory=self._context.layout.session(self._session.id),
            checkpoints=tuple(
                CheckpointStatus(
                    record=record,
                    parent=names.get(record.parent or ""),
                    saved_pid=_saved_pid(self._context, record),
                    files_bytes=files_bytes(self._context, record.id) if with_files else None,
                )
                for record in self._checkpoints
            ),
            branches=tuple(self._branch(record, names) for record in self._branches),
        )

    def _branch(self, record: BranchRecord, names: Mapping[str, str]) -> BranchStatus:
        context, layout = self._context, self._context.layout
        state = BranchState.SUSPENDED
        if not record.is_suspended:
            state = BranchState.RUNNING if context.is_running(record) else BranchState.DEAD
        limits = self._session.settings.limits
        return BranchStatus(
            record=record,
            state=state,
            head=names.get(record.head or ""),
            directory=layout.live(record.session_id, record.name),
            mount=layout.mount(record.incarnation),
            layer=layout.layer(record.incarnation),
            usage=branch_usage(context.platform, limits, record.incarnation),
            made_by=self._makers.get(record.incarnation),
        )


def _saved_pid(context: Context, checkpoint: CheckpointRecord) -> int | None:
    if checkpoint.kind is CheckpointKind.PROCESS:
        from waypoint.engine.host_program import read_program  # few sessions have host programs

        return read_program(context.layout.checkpoint_program(checkpoint.id)).pid
    return 1 if checkpoint.kind is CheckpointKind.FULL else None


def _base_name(context: Context, path: Path) -> str:
    stored = context.catalogue.find_base(path.name) if context.layout.is_stored_base(path) else None
    if stored is None:
        return os.fspath(path)
    return short_name(stored.names[0]) if stored.names else stored.id[:12]
