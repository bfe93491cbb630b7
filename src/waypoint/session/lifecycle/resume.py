"""Resume a suspended session."""

from dataclasses import replace

from waypoint.engine.work_directory import show_work
from waypoint.errors import ResumeIncomplete
from waypoint.model import BranchRecord, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch, require_publishable
from waypoint.session.lifecycle.branch_start import launch_branch, restore_as_branch
from waypoint.session.lifecycle.endings import RESUME
from waypoint.session.lifecycle.parallel import make_branches
from waypoint.session.operation import Operation, begin_operation
from waypoint.store.layout import new_id

__all__ = ["resume_session"]


def resume_session(context: Context, session: SessionRecord) -> list[BranchRecord]:
    """Restore every suspended branch at its saved point, in parallel.

    If some cannot be restored, ResumeIncomplete names them; they stay suspended, and the others run.
    """
    suspended = [branch.name for branch in context.catalogue.branches(session.id) if branch.is_suspended]
    if not suspended:
        return []
    _ = context.platform  # looked up once, not by every thread
    made, errors = make_branches(suspended, lambda name: _resume_one(context, session, name))
    if errors:
        raise ResumeIncomplete([branch.name for branch in made], errors)
    return made


def _resume_one(context: Context, session: SessionRecord, name: str) -> BranchRecord:
    with hold_branch(context, session.id, name, wait=True):
        suspended = context.catalogue.branch(session.id, name)
        if not suspended.is_suspended:  # another process has been faster
            return suspended
        with begin_operation(
            context, RESUME, session.id, name, incarnation=new_id(), checkpoint=suspended.head
        ) as operation:
            branch = _restore_or_launch(operation, session, suspended)
            with operation.timeline.step("names"):
                context.point_live_link(session.id, name, branch.incarnation)
                if name == MAIN:
                    show_work(context.platform, session, branch.incarnation)
            with operation.timeline.step("publish"), context.catalogue.transaction():
                require_publishable(context, session.id)
                context.catalogue.put_branch(branch)
                operation.publish()
    return branch


def _restore_or_launch(operation: Operation, session: SessionRecord, suspended: BranchRecord) -> BranchRecord:
    for checkpoint in operation.context.catalogue.checkpoints(session.id):
        if checkpoint.id == suspended.head:
            return restore_as_branch(operation, session, checkpoint, suspended.created_at)
    pid = launch_branch(operation, session)  # it was never saved
    return replace(suspended, incarnation=operation.incarnation, init_pid=pid, is_suspended=False)
