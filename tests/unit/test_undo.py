"""Which steps are undone, in which order, and what happens when undoing fails."""

import pytest

from waypoint.errors import CleanupFailed
from waypoint.kernel.undo import UndoStack


def test_after_a_failure_all_steps_run_newest_first() -> None:
    ran: list[str] = []
    with pytest.raises(RuntimeError), UndoStack("test") as undo:
        undo.always("a", lambda: ran.append("a"))
        undo.on_failure("b", lambda: ran.append("b"))
        raise RuntimeError
    assert ran == ["b", "a"]


def test_after_success_only_the_unconditional_steps_run() -> None:
    ran: list[str] = []
    with UndoStack("test") as undo:
        undo.always("a", lambda: ran.append("a"))
        undo.on_failure("b", lambda: ran.append("b"))
    assert ran == ["a"]


def test_what_is_already_in_use_is_not_undone() -> None:
    ran: list[str] = []
    with pytest.raises(KeyboardInterrupt), UndoStack("test", unless=lambda: True) as undo:
        undo.on_failure("a", lambda: ran.append("a"))
        raise KeyboardInterrupt
    assert ran == []


def test_a_failed_undo_step_does_not_stop_the_others_and_is_reported() -> None:
    ran: list[str] = []

    def fail() -> None:
        raise OSError(16, "busy", "/mnt")

    with pytest.raises(CleanupFailed, match="unmount") as caught, UndoStack("restore x") as undo:
        undo.on_failure("first", lambda: ran.append("first"))
        undo.on_failure("unmount", fail)
        raise RuntimeError("cause")
    assert ran == ["first"]
    assert isinstance(caught.value.__cause__, RuntimeError)
