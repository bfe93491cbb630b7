"""Run a workload in one environment, save and restore it again and again, and note what each step took."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from statefork.benchmark.workloads import Workload, run
from statefork.environment import Environment
from statefork.errors import StateForkError
from statefork.manager import EnvironmentManager
from statefork.survival_probes import PROBES, survivors

__all__ = ["Measurement", "Sample", "measure", "measure_survival"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One operation of one repetition. ``size_bytes`` is what a snapshot added."""

    backend: str
    workload: str
    repeat: int
    operation: str
    seconds: float
    size_bytes: int = 0


@dataclass(slots=True)
class Measurement:
    """What was measured of one backend; ``failure`` says why there is not more, ``records`` is what its statistics say."""

    backend: str
    workload: str
    samples: list[Sample] = field(default_factory=list)
    survived: dict[str, bool] = field(default_factory=dict)
    is_right: bool | None = None
    failure: str = ""
    records: str = ""

    def times(self, operation: str) -> list[float]:
        return [sample.seconds for sample in self.samples if sample.operation == operation]


def measure(
    name: str, make: Callable[[], EnvironmentManager], workload: Workload, repeat: int
) -> Measurement:
    """Measure one backend. A failure ends its measurement, not those of the others."""
    found = Measurement(name, workload.name)
    try:
        with _timed(found, 0, "build"):
            manager = make()
        with manager:
            try:
                workload.begin(manager.core)
                for number in range(1, repeat + 1):
                    _repetition(found, manager.core, workload, number)
            finally:
                workload.end(manager.core)
            stats = manager.stats
            found.records = "\n".join(
                (stats.print_stats(), stats.print_history(), stats.print_size_details())
            )
            with _timed(found, 0, "cleanup"):
                manager.core.close()
    except StateForkError as error:
        found.failure = f"{error} ({error.hint})" if error.hint else str(error)
    return found


def _repetition(found: Measurement, env: Environment, workload: Workload, number: int) -> None:
    run(env, workload.step(2 * number))  # so that there is something to add
    before = workload.state(env)
    with _timed(found, number, "snapshot"):
        node = env.snapshot()
    sizes = env.backend.image_sizes(env.images[node.snapshot_id])
    found.samples[-1] = replace(found.samples[-1], size_bytes=sum(sizes.values()))
    run(env, workload.step(2 * number + 1))
    with _timed(found, number, "exec"):
        run(env, "true")
    is_right = _restore(found, env, workload, node.snapshot_id, before, number)
    found.is_right = is_right and found.is_right is not False
    if not is_right:  # what the mechanism does not keep has to be started again
        workload.begin(env)
    if env.capabilities.concurrent_branches:
        with _timed(found, number, "fork"):
            [branch] = env.fork(node.snapshot_id)
            env.run("true", branch_id=branch.id)
        env.discard(branch.id)


def _restore(
    found: Measurement, env: Environment, workload: Workload, snapshot_id: str, before: str, number: int
) -> bool:
    """Only an answer shows that a restore is over; a mechanism may report it earlier, or restore something else."""
    with suppress(_NotAsBefore), _timed(found, number, "answer"):
        with _timed(found, number, "restore"):
            env.restore(snapshot_id)
        try:
            state = workload.state(env)
        except StateForkError as error:
            raise _NotAsBefore from error
        if state != before:
            raise _NotAsBefore
        return True
    return False


class _NotAsBefore(Exception):
    """The workload does not answer as it did when it was saved."""


def measure_survival(make: Callable[[], EnvironmentManager]) -> dict[str, bool]:
    """What survives a restore, probed in an environment of its own."""
    with make() as manager:
        kept = survivors(manager.core)
    return {probe.capability: probe.capability in kept for probe in PROBES}


class _timed:
    """Adds a sample for the block, if the block ends well."""

    def __init__(self, found: Measurement, repeat: int, operation: str) -> None:
        self._found = found
        self._repeat = repeat
        self._operation = operation

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            seconds = time.perf_counter() - self._began
            found = self._found
            found.samples.append(
                Sample(found.backend, found.workload, self._repeat, self._operation, seconds)
            )
