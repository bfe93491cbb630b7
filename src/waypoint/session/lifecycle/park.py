"""Save a branch and end it: it is a checkpoint then, and its name is free."""

from contextlib import ExitStack

from waypoint.errors import UsageError
from waypoint.model import CheckpointRecord, OperationStatus, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch, require_publishable
from waypoint.session.lifecycle.endings import PARK
from waypoint.session.lifecycle.snapshot import begin_saving
from waypoint.session.operation import begin_operation

__all__ = ["park_branch"]


def park_branch(
    context: Context, session: SessionRecord, branch_name: str, name: str | None, *, wait: bool = True
) -> CheckpointRecord:
    """Save the branch, then end it. It does not run between the save and its end.

    If this fails the branch keeps running.
    """
    if branch_name == MAIN:
        raise UsageError(
            "the branch 'main' cannot be parked: a session always has it",
            hint=f"save it (waypoint snapshot {session.id}), or suspend the whole session: waypoint suspend {session.id}",
        )
    with hold_branch(context, session.id, branch_name, wait=wait) as lock_fd:
        saving = begin_saving(context, session, branch_name, name, lock_fd)
        with ExitStack() as stack:
            operation = stack.enter_context(
                begin_operation(
                    context,
                    PARK,
                    session.id,
                    branch_name,
                    old_incarnation=saving.branch.incarnation,
                    checkpoint=saving.checkpoint_id,
                )
            )
            saving.prepare(operation.timeline)
            freezer = stack.enter_context(saving.freezer())
            gate_fd = stack.enter_context(saving.gate())
            checkpoint = saving.save(gate_fd, operation.timeline, freezer=freezer)
            with operation.timeline.step("publish"), context.catalogue.transaction():
                require_publishable(context, session.id, checkpoint.name)
                context.catalogue.add_checkpoint(checkpoint)
                context.catalogue.remove_branch(session.id, branch_name)
                operation.publish(OperationStatus.PUBLISHED)
            operation.finish()  # while the branch is still frozen
    return checkpoint
