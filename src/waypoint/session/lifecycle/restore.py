"""Make a branch a checkpoint again.

The checkpoint comes to life beside the branch; one transaction puts it in the place of the branch, and only then is the
old life of the branch removed. (With a program of the host: :mod:`waypoint.session.lifecycle.host_program`.)
"""

from waypoint.model import CheckpointRecord, SessionRecord
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch
from waypoint.session.lifecycle.branch_start import begin_replacement, publish_restored, restore_as_branch
from waypoint.session.lifecycle.endings import RESTORE
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
        with begin_replacement(context, RESTORE, old, new_id(), checkpoint=checkpoint) as operation:
            publish_restored(operation, restore_as_branch(operation, session, checkpoint, old.created_at))
