"""After a crash: settle what the catalogue shows as begun.

An operation is abandoned when it is not ended and nobody holds its branch's lock. (While CRIU still works
for a caller that died, it holds the lock.) The row says what the operation was making; the functions that
remove it look for what really exists. Nothing half-made was ever visible, so making goes back and
removing goes forward.
"""

import logging

from waypoint.engine.checkpoint import discard_checkpoint, resume_input
from waypoint.engine.incarnation import destroy
from waypoint.errors import Busy, NotFound
from waypoint.log import Timeline
from waypoint.model import OperationRecord, OperationStatus
from waypoint.session.context import Context
from waypoint.session.removal import remove_branch, remove_session
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
                _settle(context, operation.id)
                if not _has_branch(context, operation):
                    context.remove_locks(operation.session_id, operation.branch)
        except Busy:
            continue
        except Exception as error:  # noqa: BLE001 - told below
            # One thing that cannot be removed must not keep every other session from being used.
            log.warning("cannot settle %s of session %s: %s", operation.kind, operation.session_id, error)


def recover_branch(context: Context, session_id: str, branch: str) -> None:
    """Settle what was abandoned on one branch, whose lock the caller holds."""
    for operation in context.catalogue.unfinished():
        if (operation.session_id, operation.branch) == (session_id, branch):
            _settle(context, operation.id)


def _settle(context: Context, operation_id: int) -> None:
    operation = context.catalogue.operation(operation_id)
    if operation.status not in (OperationStatus.BEGUN, OperationStatus.PUBLISHED):
        return  # settled by another process while we waited for the lock
    log.warning(
        "settling %s of branch %s of session %s, which was cut off",
        operation.kind,
        operation.branch,
        operation.session_id,
    )
    if operation.status is OperationStatus.PUBLISHED:
        _retire_old(context, operation)
    elif operation.kind in ("create", "fork", "restore"):
        _remove_new(context, operation)
    elif operation.kind == "snapshot" and operation.checkpoint:
        discard_checkpoint(context.platform, operation.checkpoint)
        branch = context.catalogue.branch(operation.session_id, operation.branch)
        if context.is_running(branch):
            resume_input(branch)
    elif operation.kind == "destroy" and operation.old_incarnation:
        remove_branch(
            context, operation.session_id, operation.branch, operation.old_incarnation, Timeline(RECOVERY)
        )
    elif operation.kind == "cleanup":
        remove_session(context, operation.session_id, Timeline(RECOVERY))
    context.catalogue.end(
        operation.id, OperationStatus.RECOVERED, total_ms=operation.total_ms, phases_ms=operation.phases_ms
    )


def _remove_new(context: Context, operation: OperationRecord) -> None:
    if operation.incarnation is not None:
        destroy(context.platform, operation.incarnation)
    if operation.kind != "restore":
        context.layout.live(operation.session_id, operation.branch).unlink(missing_ok=True)


def _retire_old(context: Context, operation: OperationRecord) -> None:
    if operation.old_incarnation is not None:
        destroy(context.platform, operation.old_incarnation)
    if operation.incarnation is not None and _has_branch(context, operation):
        context.point_live_link(operation.session_id, operation.branch, operation.incarnation)


def _has_branch(context: Context, operation: OperationRecord) -> bool:
    try:
        context.catalogue.branch(operation.session_id, operation.branch)
    except NotFound:
        return False
    return True
