"""When a snapshot is worth its cost: a decider says whether it is taken (physical) or only recorded (virtual).

A virtual snapshot costs nothing now; to restore it, the commands since the last physical one are run again.
"""

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from statefork.errors import UnknownDecider

__all__ = [
    "AlwaysFalseDecider",
    "AlwaysTrueDecider",
    "Decider",
    "DecisionContext",
    "RandomDecider",
    "SmartCheckpointDecider",
    "ThresholdDecider",
    "make_decider",
]


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What is known when a snapshot is asked for.

    ``cumulative_exec_time`` is how many seconds of commands would have to be run again. ``snapshot_seconds`` is what a
    physical snapshot of this environment has cost, None before the first.
    """

    cumulative_exec_time: float
    pid: int = -1
    snapshot_seconds: float | None = None


class Decider(ABC):
    @abstractmethod
    def decide(self, context: DecisionContext) -> bool:
        """Whether to take a physical snapshot."""


class AlwaysTrueDecider(Decider):
    def decide(self, context: DecisionContext) -> bool:
        return True


class AlwaysFalseDecider(Decider):
    def decide(self, context: DecisionContext) -> bool:
        return False


class RandomDecider(Decider):
    def __init__(self, probability: float = 0.5, seed: int | None = None) -> None:
        self._probability = probability
        self._random = random.Random(seed)

    def decide(self, context: DecisionContext) -> bool:
        return self._random.random() < self._probability


class ThresholdDecider(Decider):
    """Physical once the commands since the last physical snapshot have taken ``threshold`` seconds."""

    def __init__(self, threshold: float = 5.0) -> None:
        self.threshold = threshold

    def decide(self, context: DecisionContext) -> bool:
        return context.cumulative_exec_time >= self.threshold


class SmartCheckpointDecider(Decider):
    """Physical if running the commands again would cost more than a snapshot.

    The cost is what snapshots of this environment have taken; before the first, it is estimated from the memory that
    the process tree holds. An unknown cost makes the snapshot physical.
    """

    SECONDS_PER_MB = 0.0012
    SECONDS_ALWAYS = 0.1

    def decide(self, context: DecisionContext) -> bool:
        cost = context.snapshot_seconds
        if cost is None:
            memory = _resident_mb(context.pid)
            if memory is None:
                return True
            cost = self.SECONDS_PER_MB * memory + self.SECONDS_ALWAYS
        return cost <= context.cumulative_exec_time


_BY_NAME: Mapping[str, Callable[[], Decider]] = {
    "always_true": AlwaysTrueDecider,
    "always_false": AlwaysFalseDecider,
    "random": RandomDecider,
    "smart": SmartCheckpointDecider,
}


def make_decider(name: str, *, threshold: float = 5.0) -> Decider:
    """The decider that the command line calls ``name``. Raises UnknownDecider."""
    if name == "threshold":
        return ThresholdDecider(threshold)
    if name not in _BY_NAME:
        raise UnknownDecider(name, (*_BY_NAME, "threshold"))
    return _BY_NAME[name]()


def _resident_mb(pid: int) -> float | None:
    """The memory of a process and all its descendants; None if there is no such process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return None
    own = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return own + sum(_resident_mb(int(child)) or 0.0 for child in children)
