"""Undo the steps of a change that failed half-way.

A step is registered *before* the action it undoes, because an action may fail half-way; so every step is
idempotent. All steps run, newest first, whatever happens to the others.
"""

from collections.abc import Callable
from types import TracebackType

from waypoint.errors import CleanupFailed

__all__ = ["UndoStack"]


class UndoStack:
    """A context manager that runs the registered steps when its block ends: always, or only on failure."""

    def __init__(self, operation: str, *, unless: Callable[[], bool] = lambda: False) -> None:
        """``unless`` is called when the block has failed: if it returns true, what the block made is in use and stays.

        (A signal may arrive just after the step that publishes, and look like a failure.)
        """
        self._operation = operation
        self._unless = unless
        self._steps: list[tuple[str, Callable[[], object], bool]] = []

    def always(self, label: str, step: Callable[[], object]) -> None:
        """Run ``step`` at the end of the block, however it ends."""
        self._steps.append((label, step, True))

    def on_failure(self, label: str, step: Callable[[], object]) -> None:
        """Run ``step`` only if the block ends by an exception."""
        self._steps.append((label, step, False))

    def __enter__(self) -> "UndoStack":
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        cause: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        failures = []
        undoing = cause is not None and not self._unless()
        for label, step, unconditional in reversed(self._steps):
            if not undoing and not unconditional:
                continue
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the steps below this one must still run
                failures.append(f"{label}: {error}")
        if failures:
            raise CleanupFailed(self._operation, failures) from cause
