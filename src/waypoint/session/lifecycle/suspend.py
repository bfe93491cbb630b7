"""Suspend a session to disk: nothing of it runs until :mod:`waypoint.session.lifecycle.resume` restores it.

Every live branch is saved and stays frozen until all are; then one transaction makes all of them *suspended*, and what
ran of them is removed. So a session is never suspended in part because one of its branches could not be saved.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace

from waypoint.errors import Broken
from waypoint.kernel.syscalls import sync_file_system
from waypoint.model import BranchRecord, CheckpointRecord, OperationStatus, SessionRecord
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import default_name, hold_branch, require_publishable
from waypoint.session.lifecycle.endings import SUSPEND
from waypoint.session.lifecycle.snapshot import Saving
from waypoint.session.operation import Operation, begin_operation
from waypoint.store.layout import new_id
from waypoint.store.lock import locked

__all__ = ["suspend_session"]

_BRANCH_PART_MAX = 40  # of a branch's name in that of its checkpoint; names have at most 64 letters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspending:
    """A branch that is being suspended, and the checkpoint that was made of it, if one was."""

    branch: BranchRecord
    operation: Operation
    checkpoint: CheckpointRecord | None


def suspend_session(
    context: Context, session: SessionRecord, *, drop: bool = False
) -> list[CheckpointRecord]:
    """Suspend every live branch; return the checkpoints at which they will be restored.

    Each is saved first. With ``drop`` it is not: it will be restored where it was last saved, or, if it never was,
    start again from its base. If this fails before all are saved, all keep running.
    """
    _ = context.platform  # mounts the pool if need be
    with ExitStack() as stack:
        stack.enter_context(locked(context.branch_lock(session.id, ""), what=f"session {session.id}"))
        locks = {
            # In one order, so that two callers do not lock each other out.
            name: stack.enter_context(hold_branch(context, session.id, name, wait=True))
            for name in sorted(branch.name for branch in context.catalogue.branches(session.id))
        }
        live = [
            branch
            for branch in context.catalogue.branches(session.id)
            if branch.name in locks and not branch.is_suspended
        ]
        if not drop:
            _require_running(context, session, live)
        suspending = [
            _prepare(context, session, branch, locks[branch.name], stack, drop=drop) for branch in live
        ]
        if not suspending:
            return []
        with suspending[0].operation.timeline.step("sync"):
            sync_file_system(context.layout.pool)
        _publish(context, session, suspending)
        for one in suspending:
            one.operation.finish()  # while the branches are still frozen
    names = {one.branch.name for one in suspending}
    heads = {branch.head for branch in context.catalogue.branches(session.id) if branch.name in names}
    return [checkpoint for checkpoint in context.catalogue.checkpoints(session.id) if checkpoint.id in heads]


def _require_running(context: Context, session: SessionRecord, branches: list[BranchRecord]) -> None:
    for branch in branches:
        if not context.is_running(branch):
            raise Broken(
                f"branch {branch.name!r} of session {session.id} is not running, so it cannot be saved",
                hint="restore or destroy it, or give up what was not saved: waypoint suspend --drop",
            )


def _prepare(
    context: Context,
    session: SessionRecord,
    branch: BranchRecord,
    lock_fd: int,
    stack: ExitStack,
    *,
    drop: bool,
) -> _Suspending:
    """Save the branch, which stays frozen until ``stack`` is closed."""
    saving = None
    if not drop:
        saving = Saving(
            context=context,
            session=session,
            branch=branch,
            checkpoint_id=new_id(),
            name=default_name(context, session.id, f"suspended-{branch.name[:_BRANCH_PART_MAX]}"),
            lock_fd=lock_fd,
        )
    operation = stack.enter_context(
        begin_operation(
            context,
            SUSPEND,
            session.id,
            branch.name,
            old_incarnation=branch.incarnation,
            checkpoint=None if saving is None else saving.checkpoint_id,
        )
    )
    checkpoint = None
    if saving is not None:
        saving.prepare(operation.timeline)
        freezer = stack.enter_context(saving.freezer())
        gate_fd = stack.enter_context(saving.gate())
        checkpoint = saving.save(gate_fd, operation.timeline, freezer=freezer)
    return _Suspending(branch=branch, operation=operation, checkpoint=checkpoint)


def _publish(context: Context, session: SessionRecord, suspending: list[_Suspending]) -> None:
    with (
        suspending[0].operation.timeline.step("publish"),
        context.catalogue.transaction(survives_power_failure=True),
    ):
        for one in suspending:
            head = one.branch.head
            if one.checkpoint is None:
                require_publishable(context, session.id)
            else:
                require_publishable(context, session.id, one.checkpoint.name)
                context.catalogue.add_checkpoint(one.checkpoint)
                head = one.checkpoint.id
            context.catalogue.put_branch(replace(one.branch, init_pid=0, head=head, is_suspended=True))
            one.operation.publish(OperationStatus.PUBLISHED)
