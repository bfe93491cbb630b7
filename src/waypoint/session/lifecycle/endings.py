"""How each kind of operation on a session ends: what is left to do once it was published, or how it is taken back.

The operation itself calls these functions, or recovery does if its process has died. Every step may find its work done.

Read next: :mod:`waypoint.session.lifecycle.recovery`.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from waypoint.engine.checkpoint import discard_checkpoint, resume_input
from waypoint.engine.incarnation import destroy
from waypoint.engine.limits import BranchLimits
from waypoint.engine.work_directory import hide_work, show_work, show_work_again
from waypoint.errors import NotFound
from waypoint.log import Timeline
from waypoint.model import BranchRecord, OperationKind
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.operation import Ending, Operation

__all__ = [
    "CLEANUP",
    "CREATE",
    "DESTROY",
    "ENDINGS",
    "FORK",
    "PARK",
    "PROMOTE",
    "RESTORE",
    "RESUME",
    "SNAPSHOT",
    "SUSPEND",
]


# -- a branch that is made


def _take_back_new_branch(operation: Operation) -> None:
    """Remove what was made of a new branch, and of the session that was to begin with it."""
    context, record = operation.context, operation.record
    context.layout.live(record.session_id, record.branch).unlink(missing_ok=True)
    _destroy_if_any(context, record.incarnation)
    if not context.has_session(record.session_id):
        _remove_tree(context.layout.session(record.session_id))


def _finish_create(operation: Operation) -> None:
    """The session exists; show its work directory."""
    if not operation.is_before_removal:
        with operation.timeline.step("work"):
            _show_work(operation)


# -- a branch that gets another incarnation


def _take_back_restore(operation: Operation) -> None:
    """Let the branch keep running as it was, and the host program that was to be restored with it."""
    if _has_host_program(operation):
        from waypoint.session.lifecycle.host_program_endings import take_back_program  # seldom needed

        take_back_program(operation)
    _show_work_again(operation)
    _destroy_if_any(operation.context, operation.record.incarnation)


def _take_back_resume(operation: Operation) -> None:
    """Leave the branch suspended."""
    context, record = operation.context, operation.record
    context.layout.live(record.session_id, record.branch).unlink(missing_ok=True)
    _show_work_again(operation)
    _destroy_if_any(context, record.incarnation)


def _take_back_promotion(_operation: Operation) -> None:
    """Nothing was made: the branches are renamed only when it is published."""


def _finish_replacement(operation: Operation) -> None:
    """Point all names to the new incarnation, then remove the old one."""
    context, record = operation.context, operation.record
    with operation.timeline.step("retire"):
        if _has_host_program(operation):
            from waypoint.session.lifecycle.host_program_endings import release_program_of  # seldom needed

            release_program_of(operation)
        if record.incarnation is not None and context.has_branch(record.session_id, record.branch):
            _rename_links(context, record.session_id, record.branch, record.incarnation)
            if not operation.is_before_removal:
                _show_work(operation)
        _destroy_if_any(context, record.old_incarnation)


def _has_host_program(operation: Operation) -> bool:
    context, incarnation = operation.context, operation.record.incarnation or ""
    return (
        context.layout.program_aside(incarnation).exists()
        or context.platform.program_cgroup(incarnation).path.exists()
    )


def _rename_links(context: Context, session_id: str, branch: str, incarnation: str) -> None:
    """Point the branch's link to the incarnation, and remove the link that it had as another branch."""
    context.point_live_link(session_id, branch, incarnation)
    for link in _links(context, session_id):
        if link.name != branch and os.readlink(link).endswith(f"/{incarnation}"):
            context.remove_locks(session_id, link.name)
            link.unlink()  # last: as long as it exists, recovery does the rest


# -- a branch that is saved


def _take_back_save(operation: Operation) -> None:
    """Let the branch keep running as before, and remove what was made of the checkpoint."""
    context, record = operation.context, operation.record
    branch = _branch_of(operation)
    if branch is not None:
        context.platform.network_cgroup(branch.incarnation).thaw()
        context.platform.cgroup(branch.incarnation).thaw()
    if record.checkpoint is not None:
        discard_checkpoint(context.platform, record.checkpoint)
    if branch is not None and context.is_running(branch):
        resume_input(branch)
        if operation.cut_off is not None:  # else the process that raised them has put them back
            limits = context.catalogue.session(record.session_id).settings.limits
            BranchLimits(context.platform, limits, branch.incarnation).impose_again()


def _finish_snapshot(_operation: Operation) -> None:
    """Nothing is left to do: publishing was the last step."""


def _finish_suspend(operation: Operation) -> None:
    """Remove what ran of a branch that is suspended now."""
    context, record = operation.context, operation.record
    if record.old_incarnation is None:
        return
    if record.branch == MAIN:
        _hide_work(context, record.session_id)
    with operation.timeline.step("branch"):
        destroy(context.platform, record.old_incarnation)
    with operation.timeline.step("names"):
        context.layout.live(record.session_id, record.branch).unlink(missing_ok=True)


# -- what is removed


def _finish_removal(operation: Operation) -> None:
    record = operation.record
    if record.old_incarnation is not None:
        _remove_branch(
            operation.context, record.session_id, record.branch, record.old_incarnation, operation.timeline
        )


def _remove_branch(
    context: Context, session_id: str, branch: str, incarnation: str, timeline: Timeline
) -> None:
    """Remove a branch from the catalogue, then its processes and files, then all that names it.

    So a client that follows a command in it learns that it was removed, not that it broke.
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


def _finish_cleanup(operation: Operation) -> None:
    """Remove all branches and checkpoints of a session, then the session itself. The locks of its branches are held."""
    from waypoint.session.network.port_forwards import settle_forwarder  # of all endings, needed here only

    context, session_id, timeline = operation.context, operation.record.session_id, operation.timeline
    with timeline.step("close"):
        context.catalogue.close_session(session_id)
    for branch in context.catalogue.branches(session_id):
        _remove_branch(context, session_id, branch.name, branch.incarnation, timeline)
    # A removal that was cut off has left links of branches which the catalogue no longer knows.
    for link in _links(context, session_id):
        _remove_branch(context, session_id, link.name, os.readlink(link).rpartition("/")[2], timeline)
    _hide_work(context, session_id)  # else what is shown there would be removed with the directory
    with timeline.step("ports"):
        settle_forwarder(context, session_id)
    for checkpoint in context.catalogue.checkpoints(session_id):
        with timeline.step("checkpoint"):
            discard_checkpoint(context.platform, checkpoint.id)
    with timeline.step("directories"):
        for directory in (context.layout.session(session_id), context.layout.work(session_id)):
            _remove_tree(directory)
    with timeline.step("forget"):
        context.catalogue.forget_session(session_id)


# -- what they have in common


def _branch_of(operation: Operation) -> BranchRecord | None:
    """The branch as it is now, if it was not removed since."""
    record = operation.record
    with suppress(NotFound):
        return operation.context.catalogue.branch(record.session_id, record.branch)
    return None


def _show_work(operation: Operation) -> None:
    """Let the work directory show the new incarnation of ``main``."""
    context, record = operation.context, operation.record
    if record.branch == MAIN:
        show_work(context.platform, context.catalogue.session(record.session_id), record.incarnation or "")


def _show_work_again(operation: Operation) -> None:
    """Let the work directory show what it showed before."""
    context, branch = operation.context, _branch_of(operation)
    if branch is not None and branch.name == MAIN and not operation.is_before_removal:
        show_work_again(context.platform, context.catalogue.session(branch.session_id), branch.incarnation)


def _hide_work(context: Context, session_id: str) -> None:
    with suppress(NotFound):  # its removal was cut off at the very end
        hide_work(context.catalogue.session(session_id))


def _destroy_if_any(context: Context, incarnation: str | None) -> None:
    if incarnation is not None:
        destroy(context.platform, incarnation)


def _remove_tree(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _links(context: Context, session_id: str) -> list[Path]:
    return [entry for entry in context.layout.session(session_id).glob("*") if entry.is_symlink()]


CREATE = Ending(OperationKind.CREATE, take_back=_take_back_new_branch, finish=_finish_create)
FORK = Ending(OperationKind.FORK, take_back=_take_back_new_branch, finish=_finish_replacement)
RESTORE = Ending(OperationKind.RESTORE, take_back=_take_back_restore, finish=_finish_replacement)
RESUME = Ending(OperationKind.RESUME, take_back=_take_back_resume, finish=_finish_replacement)
PROMOTE = Ending(OperationKind.PROMOTE, take_back=_take_back_promotion, finish=_finish_replacement)
SNAPSHOT = Ending(OperationKind.SNAPSHOT, take_back=_take_back_save, finish=_finish_snapshot)
PARK = Ending(OperationKind.PARK, take_back=_take_back_save, finish=_finish_removal)
SUSPEND = Ending(OperationKind.SUSPEND, take_back=_take_back_save, finish=_finish_suspend)
DESTROY = Ending(OperationKind.DESTROY, finish=_finish_removal)
CLEANUP = Ending(OperationKind.CLEANUP, finish=_finish_cleanup)

ENDINGS: Iterable[Ending] = (
    *(CREATE, FORK, RESTORE, RESUME, PROMOTE),
    *(SNAPSHOT, PARK, SUSPEND),
    *(DESTROY, CLEANUP),
)
