"""Steps of an operation: their names, how long they took, and who may watch them.

Every operation is a list of named steps. The same record feeds ``--timings``, the catalogue and the
benchmarks. Observers see each step as it starts; the fault-injection tests use one to fail or to kill the
process at every step in turn.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Timeline", "step_observers"]

step_observers: list[Callable[[str, str], None]] = []
"""Called with (operation, step) at the start of each step."""


class Timeline:
    """The steps of one operation, in milliseconds, in the order they began."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.phases_ms: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block as step ``name``."""
        for observer in step_observers:
            observer(self.operation, name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.note(name, (time.perf_counter() - began) * 1000)

    def note(self, name: str, milliseconds: float) -> None:
        """Record a duration that was measured elsewhere, by CRIU for instance."""
        self.phases_ms[name] = self.phases_ms.get(name, 0.0) + milliseconds

    def total_ms(self) -> float:
        """Since the operation began."""
        return (time.perf_counter() - self._began) * 1000
