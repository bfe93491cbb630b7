"""Restore a branch to a checkpoint.

The checkpoint is started as a new incarnation next to the old one; one transaction makes it the branch's, and only then
is the old incarnation removed. (With a host program: :mod:`waypoint.session.lifecycle.host_program`.)
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
    """Restore the branch to the checkpoint.

    The old incarnation is given up only when the new one answers.
    """
    with hold_branch(context, session.id, branch_name, wait=wait):
        old = context.catalogue.branch(session.id, branch_name)
        with begin_replacement(context, RESTORE, old, new_id(), checkpoint=checkpoint) as operation:
            publish_restored(operation, restore_as_branch(operation, session, checkpoint, old.created_at))
