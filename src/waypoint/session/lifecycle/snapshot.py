"""Save a branch as a checkpoint; it keeps running. :class:`Saving` is what park, suspend and manual mode share."""

import time
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.branch_network import repair_network
from waypoint.engine.checkpoint import prepare, save, save_files
from waypoint.errors import AlreadyExists
from waypoint.kernel.cgroup.freezer import Freezer
from waypoint.log import Timeline
from waypoint.model import BranchRecord, CheckpointKind, CheckpointRecord, SessionRecord
from waypoint.names import parse_name
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import (
    default_name,
    hold_branch,
    require_publishable,
    running_branch,
)
from waypoint.session.lifecycle.endings import SNAPSHOT
from waypoint.session.operation import begin_operation
from waypoint.shell.client import ShellClient
from waypoint.store.layout import new_id
from waypoint.store.lock import locked

__all__ = ["Saving", "begin_saving", "snapshot_branch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A branch, whose lock is held, and the checkpoint that it is being saved as."""

    context: Context
    session: SessionRecord
    branch: BranchRecord
    checkpoint_id: str
    name: str
    lock_fd: int

    def prepare(self, timeline: Timeline) -> None:
        """Do what can be done while the branch and its clients keep running."""
        platform, checkpoint_id, branch = self.context.platform, self.checkpoint_id, self.branch
        repair_network(platform, self.session, branch)
        prepare(platform, branch, checkpoint_id, timeline)

    def gate(self) -> locked:
        """To be held while the branch is saved: nobody connects to it meanwhile."""
        return locked(self.context.gate_lock(self.session.id, self.branch.name), what=self.branch.name)

    def save(
        self,
        gate_fd: int,
        timeline: Timeline,
        *,
        kind: CheckpointKind = CheckpointKind.FULL,
        freezer: Freezer | None = None,
    ) -> CheckpointRecord:
        """Write the checkpoint; the record returned is still to be published."""
        session, branch = self.session, self.branch
        platform, checkpoint_id = self.context.platform, self.checkpoint_id
        root = self.context.layout.mount(branch.incarnation)
        memory_bytes, hold = 0, (self.lock_fd, gate_fd)
        if kind is CheckpointKind.FILES:
            save_files(platform, session, branch, checkpoint_id, hold=hold, timeline=timeline)
        else:
            memory_bytes = save(
                platform,
                session,
                branch,
                checkpoint_id,
                quiesce=lambda: _quiesce(root),
                hold=hold,
                freezer=freezer,
                timeline=timeline,
            )
        return self.record(kind, memory_bytes)

    def record(self, kind: CheckpointKind, memory_bytes: int) -> CheckpointRecord:
        """The record to publish once the checkpoint is written."""
        return CheckpointRecord(
            id=self.checkpoint_id,
            session_id=self.session.id,
            name=self.name,
            parent=self.branch.head,
            branch=self.branch.name,
            created_at=time.time(),
            memory_bytes=memory_bytes,
            kind=kind,
        )

    def freezer(self) -> Freezer:
        """Keeps the branch from running on after it was saved."""
        return Freezer(self.context.platform.cgroup(self.branch.incarnation), (self.lock_fd,))


def snapshot_branch(
    context: Context,
    session: SessionRecord,
    branch_name: str,
    name: str | None,
    *,
    files_only: bool = False,
    wait: bool = True,
) -> CheckpointRecord:
    """Save the branch as a checkpoint. The branch keeps running, whether this succeeds or not."""
    with hold_branch(context, session.id, branch_name, wait=wait) as lock_fd:
        saving = begin_saving(context, session, branch_name, name, lock_fd)
        with begin_operation(
            context, SNAPSHOT, session.id, branch_name, checkpoint=saving.checkpoint_id
        ) as operation:
            kind = CheckpointKind.FILES if files_only else CheckpointKind.FULL
            saving.prepare(operation.timeline)
            with saving.gate() as gate_fd:
                checkpoint = saving.save(gate_fd, operation.timeline, kind=kind)
            with operation.timeline.step("publish"), context.catalogue.transaction():
                require_publishable(context, session.id, checkpoint.name)
                context.catalogue.add_checkpoint(checkpoint)
                context.catalogue.set_head(session.id, branch_name, checkpoint.id)
                operation.publish()
    return checkpoint


def begin_saving(
    context: Context, session: SessionRecord, branch_name: str, name: str | None, lock_fd: int
) -> Saving:
    """Refuse a branch or a name that cannot be saved, before anything is made for it."""
    if name is not None:
        parse_name("checkpoint", name)
    branch = running_branch(context, session, branch_name)
    name = name or default_name(context, session.id, "checkpoint")
    if context.catalogue.has_name(session.id, name):
        raise AlreadyExists("checkpoint or branch", name)
    return Saving(
        context=context,
        session=session,
        branch=branch,
        checkpoint_id=new_id(),
        name=name,
        lock_fd=lock_fd,
    )


def _quiesce(root: Path) -> None:
    with ShellClient(root) as client:
        client.quiesce()
