"""Bring a suspended session back."""

from dataclasses import replace

from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import hide_work, show_work
from waypoint.errors import ResumeIncomplete
from waypoint.model import BranchRecord, OperationStatus, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context, Operation
from waypoint.session.lifecycle.branch_lock import hold_branch, require_publishable
from waypoint.session.lifecycle.branch_start import launch_branch, restore_as_branch
from waypoint.session.lifecycle.parallel import make_branches
from waypoint.store.layout import new_id

__all__ = ["resume_session"]


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
    with hold_branch(context, session.id, name, wait=True):
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
            branch = _restore_or_launch(context, session, resting, incarnation, operation)
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


def _restore_or_launch(
    context: Context,
    session: SessionRecord,
    resting: BranchRecord,
    incarnation: str,
    operation: Operation,
) -> BranchRecord:
    for checkpoint in context.catalogue.checkpoints(session.id):
        if checkpoint.id == resting.head:
            return restore_as_branch(
                context, session, checkpoint, resting.name, incarnation, resting.created_at, operation
            )
    pid = launch_branch(context, session, incarnation, operation)  # it never was saved
    return replace(resting, incarnation=incarnation, init_pid=pid, is_suspended=False)
