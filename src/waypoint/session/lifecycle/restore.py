"""Make a branch a checkpoint again.

The checkpoint comes to life beside the branch; one transaction puts it in the place of the branch, and only then is the
old life of the branch removed. (``PROCESS`` checkpoints: :mod:`waypoint.session.lifecycle.host_program`.)
"""

from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import show_work
from waypoint.model import CheckpointRecord, OperationStatus, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch
from waypoint.session.lifecycle.branch_start import publish_restored, restore_as_branch
from waypoint.store.layout import new_id

__all__ = ["restore_branch"]


def restore_branch(
    context: Context,
    session: SessionRecord,
    branch_name: str,
    checkpoint: CheckpointRecord,
    *,
    wait: bool = True,
) -> None:
    """Make the branch that checkpoint again.

    The checkpoint comes to life beside the branch first; the branch is given up only when it answers.
    """
    with hold_branch(context, session.id, branch_name, wait=wait):
        old = context.catalogue.branch(session.id, branch_name)
        incarnation = new_id()
        with context.operation(
            "restore",
            session.id,
            branch_name,
            incarnation=incarnation,
            old_incarnation=old.incarnation,
            checkpoint=checkpoint.id,
        ) as operation:
            with context.undoing(operation) as undo:
                undo.on_failure("remove the copy", lambda: destroy(context.platform, incarnation))
                branch = restore_as_branch(
                    context, session, checkpoint, branch_name, incarnation, old.created_at, operation
                )
                publish_restored(context, branch, operation)
            with operation.timeline.step("retire"):
                context.point_live_link(session.id, branch_name, incarnation)
                if branch_name == MAIN:
                    show_work(context.platform, session, incarnation)
                destroy(context.platform, old.incarnation)
            context.end(operation, OperationStatus.DONE)
