"""Take branches and sessions away. Every step is idempotent: a removal that was cut off is run again."""

import shutil

from waypoint.engine.checkpoint import discard_checkpoint
from waypoint.engine.incarnation import destroy
from waypoint.log import Timeline
from waypoint.session.context import Context

__all__ = ["remove_branch", "remove_session"]


def remove_branch(
    context: Context, session_id: str, branch: str, incarnation: str, timeline: Timeline
) -> None:
    """End a branch's processes and remove its files, then all that names it."""
    with timeline.step("branch"):
        context.layout.live(session_id, branch).unlink(missing_ok=True)
        destroy(context.platform, incarnation)
    # The row goes after what it leads to: without it nobody would find that again.
    with timeline.step("forget"):
        context.catalogue.remove_branch(session_id, branch)
        context.remove_locks(session_id, branch)


def remove_session(context: Context, session_id: str, timeline: Timeline) -> None:
    """Remove all branches and checkpoints of a session, then the session itself."""
    with timeline.step("close"):
        context.catalogue.close_session(session_id)
    for branch in context.catalogue.branches(session_id):
        remove_branch(context, session_id, branch.name, branch.incarnation, timeline)
    for checkpoint in context.catalogue.checkpoints(session_id):
        with timeline.step("checkpoint"):
            discard_checkpoint(context.platform, checkpoint.id)
    with timeline.step("directories"):
        for directory in (context.layout.session(session_id), context.layout.work(session_id)):
            if directory.exists():
                shutil.rmtree(directory)
    with timeline.step("forget"):
        context.catalogue.forget_session(session_id)
