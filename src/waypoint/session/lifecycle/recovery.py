"""After a crash: settle what the catalogue shows as begun.

An operation is abandoned when it is not ended and nobody holds its branch's lock. (While CRIU still works
for a caller that died, it holds the lock.) The row says what the operation was making; the functions that
remove it look for what really exists. Nothing half-made was ever visible, so making goes back and
removing goes forward.
"""

import logging
from contextlib import ExitStack

from waypoint.engine.checkpoint import discard_checkpoint, resume_input
from waypoint.engine.incarnation import destroy
from waypoint.engine.limits import BranchLimits
from waypoint.engine.work_directory import show_work, show_work_again
from waypoint.errors import Busy, NotFound
from waypoint.log import Timeline
from waypoint.model import OperationRecord, OperationStatus
from waypoint.names import MAIN
from waypoint.session.context import BASES, Context
from waypoint.session.lifecycle.endings import remove_branch, remove_session, rename_links, retire_branch
from waypoint.store.lock import locked

__all__ = ["recover_abandoned", "recover_branch"]

log = logging.getLogger(__name__)
RECOVERY = "recovery"


def recover_abandoned(context: Context) -> None:
    """Settle every operation whose holder is gone; leave those under way alone."""
    for operation in context.catalogue.unfinished():
        lock = context.branch_lock(operation.session_id, operation.branch)
        try:
            with locked(lock, what=operation.branch, wait=False):
                _settle(context, operation.id, in_passing=True)
                if not _has_branch(context, operation):
                    context.remove_locks(operation.session_id, operation.branch)
        except Busy:
            continue
        except Exception as error:  # noqa: BLE001 - told below
            # One thing that cannot be removed must not keep every other session from being used.
            log.warning("cannot settle %s of session %s: %s", operation.kind, operation.session_id, error)


def recover_branch(context: Context, session_id: str, branch: str, *, is_going: bool = False) -> None:
    """Settle what was abandoned on one branch, whose lock the caller holds; ``is_going`` if to remove it."""
    for operation in context.catalogue.unfinished():
        if (operation.session_id, operation.branch) == (session_id, branch):
            _settle(context, operation.id, is_going=is_going)


def _settle(context: Context, operation_id: int, *, is_going: bool = False, in_passing: bool = False) -> None:
    operation = context.catalogue.operation(operation_id)
    if operation.status not in (OperationStatus.BEGUN, OperationStatus.PUBLISHED):
        return  # settled by another process while we waited for the lock
    what = f"branch {operation.branch} of session {operation.session_id}"
    log.warning(
        "settling %s of %s, which was cut off",
        operation.kind,
        "a base" if operation.session_id == BASES else what,
    )
    if operation.session_id == BASES:
        from waypoint.session.bases.draft import settle_base  # seldom needed, and every command imports this

        settle_base(context, operation)
    elif operation.kind == "park" and operation.status is OperationStatus.PUBLISHED:
        _remove_branch(context, operation)
    elif operation.kind == "suspend" and operation.status is OperationStatus.PUBLISHED:
        _retire_branch(context, operation)
    elif operation.status is OperationStatus.PUBLISHED:
        _settle_program(context, operation, is_going=is_going, in_passing=in_passing)
        _retire_old(context, operation, is_going=is_going)
    elif operation.kind in ("create", "fork", "restore", "resume"):
        _settle_program(context, operation, is_going=is_going, in_passing=in_passing)
        _remove_new(context, operation, is_going=is_going)
    elif operation.kind in ("snapshot", "park", "suspend"):
        if operation.checkpoint is not None:
            discard_checkpoint(context.platform, operation.checkpoint)
        _let_go_on(context, operation)
    elif operation.kind == "destroy":
        _remove_branch(context, operation)
    elif operation.kind == "cleanup":
        _remove_session(context, operation.session_id)
    context.catalogue.end(
        operation.id, OperationStatus.RECOVERED, total_ms=operation.total_ms, phases_ms=operation.phases_ms
    )


def _settle_program(
    context: Context, operation: OperationRecord, *, is_going: bool, in_passing: bool
) -> None:
    if operation.kind != "restore" or operation.incarnation is None:
        return
    aside = context.layout.program_aside(operation.incarnation)
    if aside.exists() or context.platform.program_cgroup(operation.incarnation).path.exists():
        from waypoint.session.lifecycle.host_program import (
            settle_program,  # seldom needed, and every command imports this
        )

        settle_program(context, operation, is_going=is_going, in_passing=in_passing)


def _let_go_on(context: Context, operation: OperationRecord) -> None:
    """The branch was to be saved: as it was before, if it was not removed since."""
    if not _has_branch(context, operation):
        return
    branch = context.catalogue.branch(operation.session_id, operation.branch)
    context.platform.network_cgroup(branch.incarnation).thaw()
    context.platform.cgroup(branch.incarnation).thaw()
    if context.is_running(branch):
        resume_input(branch)
        limits = context.catalogue.session(operation.session_id).settings.limits
        BranchLimits(context.platform, limits, branch.incarnation).impose_again()


def _remove_branch(context: Context, operation: OperationRecord) -> None:
    if operation.old_incarnation is not None:
        remove_branch(
            context, operation.session_id, operation.branch, operation.old_incarnation, Timeline(RECOVERY)
        )


def _retire_branch(context: Context, operation: OperationRecord) -> None:
    if operation.old_incarnation is not None:
        retire_branch(
            context, operation.session_id, operation.branch, operation.old_incarnation, Timeline(RECOVERY)
        )


def _remove_session(context: Context, session_id: str) -> None:
    with ExitStack() as held:
        for branch in context.catalogue.branches(session_id):
            # To kill a branch while CRIU has stopped it would leave CRIU waiting for ever.
            lock = context.branch_lock(session_id, branch.name)
            held.enter_context(locked(lock, what=branch.name, wait=False))
        remove_session(context, session_id, Timeline(RECOVERY))


def _remove_new(context: Context, operation: OperationRecord, *, is_going: bool) -> None:
    if operation.kind in ("restore", "resume") and operation.branch == MAIN and not is_going:
        session = context.catalogue.session(operation.session_id)
        present = context.catalogue.branch(operation.session_id, MAIN)
        show_work_again(context.platform, session, present.incarnation)
    if operation.incarnation is not None:
        destroy(context.platform, operation.incarnation)
    if operation.kind != "restore":
        context.layout.live(operation.session_id, operation.branch).unlink(missing_ok=True)


def _retire_old(context: Context, operation: OperationRecord, *, is_going: bool) -> None:
    if operation.incarnation is not None and _has_branch(context, operation):
        rename_links(context, operation.session_id, operation.branch, operation.incarnation)
        if operation.branch == MAIN and not is_going:
            session = context.catalogue.session(operation.session_id)
            show_work(context.platform, session, operation.incarnation)
    if operation.old_incarnation is not None:
        destroy(context.platform, operation.old_incarnation)


def _has_branch(context: Context, operation: OperationRecord) -> bool:
    try:
        context.catalogue.branch(operation.session_id, operation.branch)
    except NotFound:
        return False
    return True
