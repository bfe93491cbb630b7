"""What was done to an environment, how long it took in seconds, and what it left on disk."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = [
    "BenchmarkEntry",
    "BenchmarkResult",
    "BenchmarkStats",
    "SizeCalculator",
    "Statistics",
    "percentile",
]

SizeCalculator = Callable[[], Mapping[str, int]]
"""Returns the sizes in bytes of what is stored now, by name. Its own ``name``, if it has one, labels its numbers."""

LabelledSizes = Callable[[], Mapping[str, Mapping[str, int]]]
"""The same for several kinds of storage at once."""

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class BenchmarkEntry:
    """One operation: ``snapshot``, ``restore``, ``container``, ``exec``, ``fork`` or ``park``."""

    sequence: int
    operation: str
    target_id: str
    elapsed_time: float
    branch_id: str = "main"


@dataclass(frozen=True, slots=True)
class Statistics:
    count: int
    total: float
    mean: float
    median: float
    min: float
    max: float
    unit: str
    p95: float = 0.0
    stdev: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> "Statistics":
        return cls(
            count=len(values),
            total=sum(values),
            mean=statistics.fmean(values),
            median=statistics.median(values),
            min=min(values),
            max=max(values),
            unit=unit,
            p95=percentile(values, 95),
            stdev=statistics.stdev(values) if len(values) > 1 else 0.0,
        )


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    time: Mapping[str, Statistics] = field(default_factory=dict)
    size: Mapping[str, Statistics] = field(default_factory=dict)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed: the nearest one that was measured."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]


class BenchmarkStats:
    """The operations of one environment in the order in which they ended; safe for threads."""

    def __init__(self, entries: Sequence[BenchmarkEntry] = ()) -> None:
        self._lock = threading.Lock()
        self._entries = list(entries)
        self._calculators: list[LabelledSizes] = []

    @property
    def entries(self) -> list[BenchmarkEntry]:
        with self._lock:
            return list(self._entries)

    def add_entry(self, operation: str, target_id: str, elapsed_time: float, branch_id: str = "main") -> None:
        with self._lock:
            number = len(self._entries) + 1
            self._entries.append(BenchmarkEntry(number, operation, target_id, elapsed_time, branch_id))

    @contextmanager
    def timed(self, operation: str, target_id: str, branch_id: str) -> Iterator[None]:
        """Record the block as one operation, if it succeeds."""
        began = time.perf_counter()
        yield
        self.add_entry(operation, target_id, time.perf_counter() - began, branch_id)

    def attach_size_calculator(self, calculator: SizeCalculator, name: str | None = None) -> None:
        chosen = name or str(getattr(calculator, "name", "STORAGE"))
        self.attach_sizes(lambda: {chosen: calculator()})

    def attach_sizes(self, sizes: LabelledSizes) -> None:
        with self._lock:
            self._calculators.append(sizes)

    def median(self, operation: str) -> float | None:
        """The median time of an operation in seconds; None before the first."""
        times = [entry.elapsed_time for entry in self.entries if entry.operation == operation]
        return statistics.median(times) if times else None

    def get_all_statistics(self) -> BenchmarkResult:
        times: dict[str, list[float]] = {}
        for entry in self.entries:
            times.setdefault(entry.operation, []).append(entry.elapsed_time)
        sizes = {label: [size / _MB for size in found.values()] for label, found in self._sizes().items()}
        return BenchmarkResult(
            time={operation: Statistics.of(values, "seconds") for operation, values in times.items()},
            size={label: Statistics.of(values, "MB") for label, values in sizes.items()},
        )

    def print_stats(self) -> str:
        """The summary as text: one line for each operation and each kind of storage."""
        result = self.get_all_statistics()
        lines = [
            f"[{operation.upper():<10}] {_spread(found, digits=6, unit='s')}"
            for operation, found in result.time.items()
        ]
        lines += [f"[{label}] {_spread(found, digits=3, unit=' MB')}" for label, found in result.size.items()]
        return "\n".join(lines) or "No operations recorded."

    def print_history(self) -> str:
        lines = [
            f"#{entry.sequence:<4} [{entry.operation.upper():<10}] -> {entry.target_id}"
            f" took {entry.elapsed_time:.4f}s"
            for entry in self.entries
        ]
        return "\n".join(lines) or "No operations recorded."

    def print_size_details(self) -> str:
        lines = []
        for number, found in enumerate(self._sizes().values(), 1):
            sizes = sorted(found.items(), key=lambda item: (-item[1], item[0]))
            lines.append(f"[Storage Cost Summary #{number}]")
            lines += [f">> {name}: {size / _MB:.3f} MB" for name, size in sizes]
        return "\n".join(lines) or "No size details available."

    def _sizes(self) -> dict[str, Mapping[str, int]]:
        """What is stored now, by label: the name of a kind of storage, numbered among those of the same name."""
        with self._lock:
            calculators = list(self._calculators)
        found = [(name, sizes) for calculate in calculators for name, sizes in calculate().items()]
        names = [name for name, _ in found]
        return {
            f"{name} #{names[: index + 1].count(name)}": sizes
            for index, (name, sizes) in enumerate(found)
            if sizes
        }


def _spread(found: Statistics, *, digits: int, unit: str) -> str:
    values = (("mean", found.mean), ("median", found.median), ("min", found.min), ("max", found.max))
    return " ".join(f"{name}={value:.{digits}f}{unit}" for name, value in values)
