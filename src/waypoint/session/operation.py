"""One change to a session or a base, which happens whole or not at all.

It is recorded as *begun* before anything is made. The transaction that makes its result visible also records it as
*published* (something is left to do) or *done*. Each kind has an :class:`Ending`: how it is taken back if it was not
published, and what is left to do if it was. The operation itself and recovery call the same two functions, so an
operation that fails and one whose process dies leave the same behind; both may be called again, and do nothing twice.

Read next: :mod:`waypoint.session.lifecycle.endings`.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from waypoint.errors import CleanupFailed, EngineError, PoolFull, WaypointError
from waypoint.kernel.undo import UndoStack
from waypoint.log import Timeline
from waypoint.model import OperationKind, OperationRecord, OperationStatus
from waypoint.session.context import BASES, Context

__all__ = ["CutOff", "Ending", "Operation", "begin_operation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """How recovery settles an operation whose process has died."""

    is_before_removal: bool = False
    """The caller is about to remove the branch or session: what cannot be as it was before must not stop that."""
    in_passing: bool = False
    """The caller came for something else, and must not wait long."""


@dataclass(frozen=True, slots=True)
class Ending:
    """``take_back`` undoes an operation that was not published; a removal has none, because it only goes forward.
    ``finish`` does what is left once it was published."""

    kind: OperationKind
    finish: Callable[["Operation"], None]
    take_back: Callable[["Operation"], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation in progress, or, with ``cut_off``, one that recovery has found."""

    context: Context
    ending: Ending
    record: OperationRecord
    timeline: Timeline
    cut_off: CutOff | None = None

    @property
    def incarnation(self) -> str:
        """The incarnation that it makes."""
        assert self.record.incarnation is not None
        return self.record.incarnation

    @property
    def is_before_removal(self) -> bool:
        return self.cut_off is not None and self.cut_off.is_before_removal

    def publish(self, status: OperationStatus = OperationStatus.DONE) -> None:
        """Record its ``status``, in the transaction that makes the result visible."""
        self._end(status)

    def has_published(self) -> bool:
        """Whether what it made is visible already; then it must not be undone."""
        return self._status() is not OperationStatus.BEGUN

    def finish(self) -> None:
        """Do what is left to do, if anything."""
        if self._status() is not OperationStatus.DONE:
            self.ending.finish(self)
            self._end(OperationStatus.DONE)

    def settle(self) -> None:
        """Take it back, or finish it, whichever is due after its process has died."""
        if self.ending.take_back is None or self.record.status is OperationStatus.PUBLISHED:
            self.ending.finish(self)
        else:
            self.ending.take_back(self)
        record = self.record
        self.context.catalogue.end(
            record.id, OperationStatus.RECOVERED, total_ms=record.total_ms, phases_ms=record.phases_ms
        )

    def fail(self) -> None:
        """Record that it failed, and that nothing of it is left."""
        self._end(OperationStatus.FAILED)

    def _end(self, status: OperationStatus) -> None:
        self.context.catalogue.end(
            self.record.id,
            status,
            total_ms=self.timeline.total_ms(),
            phases_ms=dict(self.timeline.phases_ms),
        )

    def _status(self) -> OperationStatus:
        return self.context.catalogue.operation(self.record.id).status


@contextmanager
def begin_operation(
    context: Context,
    ending: Ending,
    session_id: str,
    branch: str,
    *,
    incarnation: str | None = None,
    old_incarnation: str | None = None,
    checkpoint: str | None = None,
) -> Iterator[Operation]:
    """Record an operation for the length of the block, which publishes it; then finish it, or take it back.

    What cannot be taken back or finished now stays in the catalogue, and the next command continues with it. An OSError
    is raised as an error that names the operation and the branch.
    """
    record = context.catalogue.begin(
        ending.kind,
        session_id,
        branch,
        incarnation=incarnation,
        old_incarnation=old_incarnation,
        checkpoint=checkpoint,
    )
    operation = Operation(context=context, ending=ending, record=record, timeline=Timeline(ending.kind))
    take_back = ending.take_back
    try:
        with UndoStack(ending.kind, unless=operation.has_published) as undo:
            if take_back is not None:
                undo.on_failure("take it back", lambda: take_back(operation))
            yield operation
        operation.finish()
    except CleanupFailed:
        raise
    except BaseException as error:
        if take_back is not None and not operation.has_published():
            operation.fail()
        if isinstance(error, OSError):
            raise _explained(record, error) from error
        raise


def _explained(record: OperationRecord, error: OSError) -> WaypointError:
    where = f"session {record.session_id}"
    if record.session_id == BASES:
        where = "a base"
    elif record.branch:
        where += f", branch {record.branch!r}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PoolFull(f"cannot {record.kind}: the pool has no space left ({where})")
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error) or type(error).__name__
    return EngineError(f"cannot {record.kind}: {what} ({where})")
