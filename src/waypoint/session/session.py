"""Handles on what lives: a session, and a branch of it. They hold no state; the catalogue does."""

import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import NotFound, UsageError
from waypoint.model import BranchRecord, CheckpointRecord, OperationRecord, SessionRecord
from waypoint.names import MAIN, parse_name
from waypoint.session.attendant import await_attendant_end, ensure_attendant
from waypoint.session.context import Context
from waypoint.session.drawing import draw_tree
from waypoint.session.files import BranchFiles
from waypoint.session.interaction import BranchInteraction
from waypoint.session.operations import (
    check_new_names,
    cleanup_session,
    default_branch_names,
    destroy_branch,
    fork_checkpoint,
    restore_branch,
    snapshot_branch,
)
from waypoint.session.place import Place

__all__ = ["Branch", "Session"]

FORKS_MAX = 256


@dataclass(frozen=True, slots=True)
class Branch(BranchFiles, BranchInteraction):
    """One live environment of a session."""

    session: "Session"
    name: str

    @property
    def directory(self) -> Path:
        """Where the host sees the branch's live files; the same path after a restore."""
        return self.session.context.layout.live(self.session.id, self.name)

    @property
    def record(self) -> BranchRecord:
        return self.session.context.catalogue.branch(self.session.id, self.name)

    def is_running(self) -> bool:
        return self.session.context.is_running(self.record)

    def _where(self) -> tuple[Context, SessionRecord, str]:
        return self.session.context, self.session.record, self.name

    @property
    def place(self) -> Place:
        context = self.session.context
        return Place(str(context.layout.state_dir), context.catalogue, self.session.id, self.name)

    def snapshot(self, name: str | None = None, *, wait: bool = True) -> CheckpointRecord:
        """Save the branch as it is now; it runs on."""
        saved = snapshot_branch(self.session.context, self.session.record, self.name, name, wait=wait)
        ensure_attendant(self.session.context, self.session.record)
        return saved

    def restore(self, checkpoint: CheckpointRecord | str, *, wait: bool = True) -> CheckpointRecord:
        """Make the branch that checkpoint again; what was not saved is gone."""
        context, session = self.session.context, self.session.record
        restored = restore_branch(context, session, self.name, _checkpoint_name(checkpoint), wait=wait)
        ensure_attendant(context, session)
        return restored

    def destroy(self, *, wait: bool = True) -> None:
        """End the branch; its checkpoints stay."""
        destroy_branch(self.session.context, self.session.record, self.name, wait=wait)


@dataclass(frozen=True, slots=True)
class Session(BranchFiles, BranchInteraction):
    """A base, a tree of checkpoints, and live branches. Its verbs act on the branch ``main``."""

    context: Context
    record: SessionRecord

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def main(self) -> Branch:
        return Branch(self, MAIN)

    @property
    def directory(self) -> Path:
        return self.main.directory

    @property
    def place(self) -> Place:
        return self.main.place

    def _where(self) -> tuple[Context, SessionRecord, str]:
        return self.main._where()

    def branch(self, name: str) -> Branch:
        """A live branch by name. Raises NotFound."""
        parse_name("branch", name)
        self.context.catalogue.branch(self.id, name)
        return Branch(self, name)

    def branches(self) -> list[Branch]:
        return [Branch(self, record.name) for record in self.context.catalogue.branches(self.id)]

    def checkpoints(self) -> list[CheckpointRecord]:
        """All checkpoints, oldest first."""
        return self.context.catalogue.checkpoints(self.id)

    def files_bytes(self, checkpoint: CheckpointRecord) -> int:
        """What the branch had written over its base by then; checkpoints share what they have in common."""
        layer = self.context.layout.checkpoint_layer(checkpoint.id)
        total = 0
        for directory, below, files in os.walk(layer):
            if ".waypoint" in below and directory == str(layer / "upper"):
                below.remove(".waypoint")  # our own init
            total += sum(os.lstat(os.path.join(directory, file)).st_blocks * 512 for file in files)
        return total

    def tree(self) -> str:
        """The checkpoints and branches, drawn as text."""
        return draw_tree(self)

    def operations(self) -> list[OperationRecord]:
        """All that was done, oldest first, with the time each step took."""
        return self.context.catalogue.operations(self.id)

    def snapshot(self, name: str | None = None, *, wait: bool = True) -> CheckpointRecord:
        return self.main.snapshot(name, wait=wait)

    def restore(self, checkpoint: CheckpointRecord | str, *, wait: bool = True) -> CheckpointRecord:
        return self.main.restore(checkpoint, wait=wait)

    def fork(
        self,
        source: CheckpointRecord | Branch | str,
        *,
        n: int | None = None,
        ids: list[str] | None = None,
    ) -> list[Branch]:
        """Make ``n`` live branches from a checkpoint, or from a live branch (which is saved first).

        They are made at the same time, each whole or not at all. ``ids`` names them.
        """
        if ids is not None and n is not None and len(ids) != n:
            raise UsageError(
                f"{n} branches but {len(ids)} names", hint="give one of the two, or as many names"
            )
        count = n if n is not None else len(ids) if ids is not None else 1
        if not 1 <= count <= FORKS_MAX:
            raise UsageError(
                f"cannot make {count} branches at once", hint=f"ask for 1 to {FORKS_MAX}; fork again for more"
            )
        check_new_names(self.context, self.id, ids or [])
        checkpoint = self._fork_source(source)
        names = ids or default_branch_names(self.context, self.id, count)
        made = fork_checkpoint(self.context, self.record, checkpoint, names)
        ensure_attendant(self.context, self.record)
        return [Branch(self, record.name) for record in made]

    def destroy(self, branch: str, *, wait: bool = True) -> None:
        self.branch(branch).destroy(wait=wait)

    def cleanup(self, *, force: bool = False) -> None:
        """Remove the session with everything in it."""
        cleanup_session(self.context, self.record, force=force)
        await_attendant_end(self.context, self.record)

    def _fork_source(self, source: CheckpointRecord | Branch | str) -> CheckpointRecord:
        if isinstance(source, Branch):
            return source.snapshot()
        name = parse_name("checkpoint or branch", _checkpoint_name(source))
        catalogue = self.context.catalogue
        if any(record.name == name for record in catalogue.branches(self.id)):
            return Branch(self, name).snapshot()
        try:
            return catalogue.checkpoint(self.id, name)
        except NotFound as error:
            raise NotFound(
                "checkpoint or branch", name, hint=f"waypoint list {self.id} shows both"
            ) from error


def _checkpoint_name(checkpoint: CheckpointRecord | str) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.name
