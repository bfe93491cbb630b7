"""Take branches and sessions away. Every step is idempotent: a removal that was cut off is run again."""

import shutil

from waypoint.engine.checkpoint import discard_checkpoint
from waypoint.engine.incarnation import destroy
from waypoint.session.context import Context

__all__ = ["remove_branch", "remove_session"]


def remove_branch(context: Context, session_id: str, branch: str, incarnation: str) -> None:
    """Remove a branch from the catalogue, then its processes, files and locks."""
    context.catalogue.remove_branch(session_id, branch)
    context.layout.live(session_id, branch).unlink(missing_ok=True)
    destroy(context.platform, incarnation)
    context.remove_locks(session_id, branch)


def remove_session(context: Context, session_id: str) -> None:
    """Remove all branches and checkpoints of a session, then the session itself."""
    context.catalogue.close_session(session_id)
    for branch in context.catalogue.branches(session_id):
        remove_branch(context, session_id, branch.name, branch.incarnation)
    for checkpoint in context.catalogue.checkpoints(session_id):
        discard_checkpoint(context.platform, checkpoint.id)
    for directory in (context.layout.session(session_id), context.layout.work(session_id)):
        if directory.exists():
            shutil.rmtree(directory)
    context.catalogue.forget_session(session_id)
