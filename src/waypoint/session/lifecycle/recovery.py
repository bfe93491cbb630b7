"""After a crash: settle the operations that the catalogue shows as begun or published.

An operation is abandoned when it is not ended and nobody holds its branch's lock. (While CRIU still works
for a caller that died, it holds the lock.) The row says what the operation was making; the functions that
remove it look for what really exists. Nothing half-made was ever visible, so what was being made is
taken back and what was being removed is finished, as the :class:`Ending` of its kind says.

Few commands find anything to settle, so their callers import this module only then: :func:`recover_branch` is called by
:mod:`waypoint.session.lifecycle.branch_lock`, :func:`recover_abandoned` when a state directory is opened.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from waypoint.errors import Busy
from waypoint.log import Timeline
from waypoint.model import OperationKind, OperationStatus
from waypoint.session.bases.draft import BASE_ENDINGS
from waypoint.session.context import BASES, Context
from waypoint.session.lifecycle.endings import ENDINGS
from waypoint.session.operation import CutOff, Ending, Operation
from waypoint.store.lock import locked

__all__ = ["recover_abandoned", "recover_branch"]

log = logging.getLogger(__name__)

_ENDINGS: Mapping[OperationKind, Ending] = {ending.kind: ending for ending in (*ENDINGS, *BASE_ENDINGS)}


def recover_abandoned(context: Context) -> None:
    """Settle every operation whose lock nobody holds; leave those in progress alone."""
    for operation in context.catalogue.unfinished():
        session_id, branch = operation.session_id, operation.branch
        try:
            with locked(context.branch_lock(session_id, branch), what=branch, wait=False):
                _settle(context, operation.id, CutOff(in_passing=True))
                if not context.has_branch(session_id, branch):
                    context.remove_locks(session_id, branch)
        except Busy:
            continue
        except Exception as error:  # noqa: BLE001 - logged below
            # One thing that cannot be removed must not keep every other session from being used.
            log.warning("cannot settle %s of session %s: %s", operation.kind, session_id, error)


def recover_branch(
    context: Context, session_id: str, branch: str, *, is_before_removal: bool = False
) -> None:
    """Settle what was abandoned on one branch, whose lock the caller holds.

    ``is_before_removal`` says that the caller is about to remove the branch.
    """
    for operation in context.catalogue.unfinished():
        if (operation.session_id, operation.branch) == (session_id, branch):
            _settle(context, operation.id, CutOff(is_before_removal=is_before_removal))


def _settle(context: Context, operation_id: int, cut_off: CutOff) -> None:
    record = context.catalogue.operation(operation_id)
    if record.status not in (OperationStatus.BEGUN, OperationStatus.PUBLISHED):
        return  # settled by another process while we waited for the lock
    what = f"branch {record.branch} of session {record.session_id}"
    log.warning(
        "settling %s of %s, which was cut off", record.kind, "a base" if record.session_id == BASES else what
    )
    with ExitStack() as held:
        if record.kind is OperationKind.CLEANUP:
            for branch in context.catalogue.branches(record.session_id):
                # To kill a branch while CRIU has stopped it would leave CRIU waiting for ever.
                lock = context.branch_lock(record.session_id, branch.name)
                held.enter_context(locked(lock, what=branch.name, wait=False))
        Operation(
            context=context,
            ending=_ENDINGS[record.kind],
            record=record,
            timeline=Timeline("recovery"),
            cut_off=cut_off,
        ).settle()
