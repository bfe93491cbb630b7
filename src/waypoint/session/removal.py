"""Take branches and sessions away. Every step is idempotent: a removal that was cut off is run again."""

import os
import shutil

from waypoint.engine.checkpoint import discard_checkpoint
from waypoint.engine.incarnation import destroy
from waypoint.log import Timeline
from waypoint.session.context import Context

__all__ = ["remove_branch", "remove_session"]


def remove_branch(
    context: Context, session_id: str, branch: str, incarnation: str, timeline: Timeline
) -> None:
    """Remove a branch from the catalogue, then its processes and files, then all that names it.

    Whoever follows a command in it thus learns that it was removed, not that it broke.
    """
    with timeline.step("forget"):
        context.catalogue.remove_branch(session_id, branch)
    with timeline.step("branch"):
        destroy(context.platform, incarnation)
    with timeline.step("names"):
        context.layout.live(session_id, branch).unlink(missing_ok=True)
        context.remove_locks(session_id, branch)


def remove_session(context: Context, session_id: str, timeline: Timeline) -> None:
    """Remove all branches and checkpoints of a session, then the session itself."""
    with timeline.step("close"):
        context.catalogue.close_session(session_id)
    for branch in context.catalogue.branches(session_id):
        remove_branch(context, session_id, branch.name, branch.incarnation, timeline)
    # A removal that was cut off has left links of branches which the catalogue no longer knows.
    for link in context.layout.session(session_id).glob("*"):
        remove_branch(context, session_id, link.name, os.readlink(link).rpartition("/")[2], timeline)
    for checkpoint in context.catalogue.checkpoints(session_id):
        with timeline.step("checkpoint"):
            discard_checkpoint(context.platform, checkpoint.id)
    with timeline.step("directories"):
        for directory in (context.layout.session(session_id), context.layout.work(session_id)):
            if directory.exists():
                shutil.rmtree(directory)
    with timeline.step("forget"):
        context.catalogue.forget_session(session_id)
