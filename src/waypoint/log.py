"""The named steps of an operation: how long each took, and observers that are called when one starts.

Every operation is a list of named steps. The same record feeds ``--timings``, the catalogue and the
benchmarks. The fault-injection tests use an observer to fail or to kill the process at every step in turn.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timeline", "step_observers"]

step_observers: list[Callable[[str, str], None]] = []
"""Called with (operation, step) at the start of each step."""


class Timeline:
    """The steps of one operation, in milliseconds, in the order they ended."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.phases_ms: dict[str, float] = {}
        self._began = time.perf_counter()

    def step(self, name: str) -> _Step:
        """A context manager that times its block as step ``name``."""
        return _Step(self, name)

    def note(self, name: str, milliseconds: float) -> None:
        """Record a duration that was measured elsewhere, by CRIU for instance."""
        self.phases_ms[name] = self.phases_ms.get(name, 0.0) + milliseconds

    def total_ms(self) -> float:
        """The time since the operation began."""
        return (time.perf_counter() - self._began) * 1000


class _Step:
    def __init__(self, timeline: Timeline, name: str) -> None:
        self._timeline = timeline
        self._name = name

    def __enter__(self) -> None:
        for observer in step_observers:
            observer(self._timeline.operation, self._name)
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._timeline.note(self._name, (time.perf_counter() - self._began) * 1000)
