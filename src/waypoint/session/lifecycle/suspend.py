"""Let a session rest on disk, with nothing of it running, and bring it back.

Every live branch is saved and stands still until all are; then one transaction makes all of them *suspended*, and what
ran of them is removed. So a session never rests in part because one of its branches could not be saved.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace

from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import hide_work, show_work
from waypoint.errors import Broken, ResumeIncomplete
from waypoint.kernel.syscalls import sync_file_system
from waypoint.model import BranchRecord, CheckpointRecord, OperationStatus, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context, Operation
from waypoint.session.lifecycle.branch_lock import default_name, holding, require_publishable
from waypoint.session.lifecycle.branch_start import launch_branch, revive_branch
from waypoint.session.lifecycle.parallel import make_branches
from waypoint.session.lifecycle.remove import retire_branch
from waypoint.session.lifecycle.snapshot import Saving
from waypoint.store.layout import new_id
from waypoint.store.lock import locked

__all__ = ["resume_session", "suspend_session"]

_BRANCH_PART_MAX = 40  # of a branch's name in that of its checkpoint; names have at most 64 letters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspending:
    """A branch that is about to rest, and the checkpoint that was made of it, if one was."""

    branch: BranchRecord
    operation: Operation
    checkpoint: CheckpointRecord | None


def suspend_session(
    context: Context, session: SessionRecord, *, drop: bool = False
) -> list[CheckpointRecord]:
    """End every live branch; the points at which they will come back.

    Each is saved first. With ``drop`` it is not: it comes back where it was last saved, or, if it never was, anew
    from its base. If this fails before all are saved, all run on.
    """
    _ = context.platform  # mounts the pool if need be
    with ExitStack() as stack:
        stack.enter_context(locked(context.branch_lock(session.id, ""), what=f"session {session.id}"))
        locks = {
            # In one order, so that two callers do not lock each other out.
            name: stack.enter_context(holding(context, session.id, name, wait=True))
            for name in sorted(branch.name for branch in context.catalogue.branches(session.id))
        }
        live = [
            branch
            for branch in context.catalogue.branches(session.id)
            if branch.name in locks and not branch.is_suspended
        ]
        if not drop:
            _require_running(context, session, live)
        going = [_prepare(context, session, branch, locks[branch.name], stack, drop=drop) for branch in live]
        if not going:
            return []
        with going[0].operation.timeline.step("sync"):
            sync_file_system(context.layout.pool)
        _publish(context, session, going)
        for one in going:
            retire_branch(
                context, session.id, one.branch.name, one.branch.incarnation, one.operation.timeline
            )
            context.end(one.operation, OperationStatus.DONE)
    gone = {one.branch.name for one in going}
    heads = {branch.head for branch in context.catalogue.branches(session.id) if branch.name in gone}
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
    """Save the branch, which stands still until ``stack`` lets it go."""
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
        context.operation(
            "suspend",
            session.id,
            branch.name,
            old_incarnation=branch.incarnation,
            checkpoint=None if saving is None else saving.checkpoint_id,
        )
    )
    checkpoint = None
    if saving is not None:
        undo = stack.enter_context(context.undoing(operation))
        saving.prepare(undo, operation.timeline)
        standstill = stack.enter_context(saving.standstill())
        gate_fd = stack.enter_context(saving.gate())
        checkpoint = saving.save(gate_fd, operation.timeline, standstill=standstill)
    return _Suspending(branch=branch, operation=operation, checkpoint=checkpoint)


def _publish(context: Context, session: SessionRecord, going: list[_Suspending]) -> None:
    with (
        going[0].operation.timeline.step("publish"),
        context.catalogue.transaction(survives_power_failure=True),
    ):
        for one in going:
            head = one.branch.head
            if one.checkpoint is None:
                require_publishable(context, session.id)
            else:
                require_publishable(context, session.id, one.checkpoint.name)
                context.catalogue.add_checkpoint(one.checkpoint)
                head = one.checkpoint.id
            context.catalogue.put_branch(replace(one.branch, init_pid=0, head=head, is_suspended=True))
            context.end(one.operation, OperationStatus.PUBLISHED)


def resume_session(context: Context, session: SessionRecord) -> list[BranchRecord]:
    """Bring every suspended branch back at its saved point, all at the same time.

    If some cannot come back, ResumeIncomplete names them; they stay suspended, and the others run.
    """
    resting = [branch.name for branch in context.catalogue.branches(session.id) if branch.is_suspended]
    if not resting:
        return []
    _ = context.platform  # found once, not by every thread
    made, errors = make_branches(resting, lambda name: _resume_one(context, session, name))
    if errors:
        raise ResumeIncomplete([branch.name for branch in made], errors)
    return made


def _resume_one(context: Context, session: SessionRecord, name: str) -> BranchRecord:
    incarnation = new_id()
    with holding(context, session.id, name, wait=True):
        resting = context.catalogue.branch(session.id, name)
        if not resting.is_suspended:  # another process has been faster
            return resting
        with (
            context.operation(
                "resume", session.id, name, incarnation=incarnation, checkpoint=resting.head
            ) as operation,
            context.undoing(operation) as undo,
        ):
            undo.on_failure("remove the branch", lambda: destroy(context.platform, incarnation))
            branch = _revive(context, session, resting, incarnation, operation)
            with operation.timeline.step("names"):
                link = context.layout.live(session.id, name)
                undo.on_failure("remove the link", lambda: link.unlink(missing_ok=True))
                context.point_live_link(session.id, name, incarnation)
                if name == MAIN:
                    undo.on_failure("empty the work directory", lambda: hide_work(session))
                    show_work(context.platform, session, incarnation)
            with operation.timeline.step("publish"), context.catalogue.transaction():
                require_publishable(context, session.id)
                context.catalogue.put_branch(branch)
                context.end(operation, OperationStatus.DONE)
    return branch


def _revive(
    context: Context,
    session: SessionRecord,
    resting: BranchRecord,
    incarnation: str,
    operation: Operation,
) -> BranchRecord:
    for checkpoint in context.catalogue.checkpoints(session.id):
        if checkpoint.id == resting.head:
            return revive_branch(
                context, session, checkpoint, resting.name, incarnation, resting.created_at, operation
            )
    pid = launch_branch(context, session, incarnation, operation)  # it never was saved
    return replace(resting, incarnation=incarnation, init_pid=pid, is_suspended=False)
