"""Take branches and sessions away. Every step is idempotent: a removal that was cut off is run again."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from waypoint.engine.checkpoint import discard_checkpoint
from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import hide_work
from waypoint.errors import NotFound
from waypoint.log import Timeline
from waypoint.names import MAIN
from waypoint.session.background.port_forwards import settle_forwarder
from waypoint.session.context import Context

__all__ = ["remove_branch", "remove_session", "rename_links", "retire_branch"]


def remove_branch(
    context: Context, session_id: str, branch: str, incarnation: str, timeline: Timeline
) -> None:
    """Remove a branch from the catalogue, then its processes and files, then all that names it.

    Whoever follows a command in it thus learns that it was removed, not that it broke.
    """
    with timeline.step("forget"):
        context.catalogue.remove_branch(session_id, branch)
    if branch == MAIN:
        _hide_work(context, session_id)
    with timeline.step("branch"):
        destroy(context.platform, incarnation)
    with timeline.step("names"):
        context.layout.live(session_id, branch).unlink(missing_ok=True)
        context.remove_locks(session_id, branch)


def retire_branch(
    context: Context, session_id: str, branch: str, incarnation: str, timeline: Timeline
) -> None:
    """Remove what ran of a branch that rests from now on."""
    if branch == MAIN:
        _hide_work(context, session_id)
    with timeline.step("branch"):
        destroy(context.platform, incarnation)
    with timeline.step("names"):
        context.layout.live(session_id, branch).unlink(missing_ok=True)


def rename_links(context: Context, session_id: str, branch: str, incarnation: str) -> None:
    """Let the branch's link lead to the incarnation, and remove the name that it had as another branch."""
    context.point_live_link(session_id, branch, incarnation)
    for link in _links(context, session_id):
        if link.name != branch and os.readlink(link).endswith(f"/{incarnation}"):
            context.remove_locks(session_id, link.name)
            link.unlink()  # last: it is what says that the rest is still to be done


def _hide_work(context: Context, session_id: str) -> None:
    with suppress(NotFound):  # its removal was cut off at the very end
        hide_work(context.catalogue.session(session_id))


def _links(context: Context, session_id: str) -> list[Path]:
    return [entry for entry in context.layout.session(session_id).glob("*") if entry.is_symlink()]


def remove_session(context: Context, session_id: str, timeline: Timeline) -> None:
    """Remove all branches and checkpoints of a session, then the session itself."""
    with timeline.step("close"):
        context.catalogue.close_session(session_id)
    for branch in context.catalogue.branches(session_id):
        remove_branch(context, session_id, branch.name, branch.incarnation, timeline)
    # A removal that was cut off has left links of branches which the catalogue no longer knows.
    for link in _links(context, session_id):
        remove_branch(context, session_id, link.name, os.readlink(link).rpartition("/")[2], timeline)
    _hide_work(context, session_id)  # or what is shown there would be removed with the directory
    with timeline.step("ports"):
        settle_forwarder(context, session_id)
    for checkpoint in context.catalogue.checkpoints(session_id):
        with timeline.step("checkpoint"):
            discard_checkpoint(context.platform, checkpoint.id)
    with timeline.step("directories"):
        for directory in (context.layout.session(session_id), context.layout.work(session_id)):
            if directory.exists():
                shutil.rmtree(directory)
    with timeline.step("forget"):
        context.catalogue.forget_session(session_id)
