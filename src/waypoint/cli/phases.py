"""``phase_stats``: how long the steps of an operation took, under their older names and then our own."""

import dataclasses
from collections.abc import Mapping

from waypoint.cli.answer import Answer
from waypoint.model import OperationKind, OperationRecord

__all__ = ["FORK_FIELDS", "FORK_NAMES", "SNAPSHOT_NAMES", "named_phases", "phases_text", "with_phases"]

# Older names for steps that we measure. Older steps that do not exist here (a helper process, a second restore
# after each save) are left out.
SNAPSHOT_NAMES = {"dump": "dump_ms", "files": "seal_ms", "pause": "frozen_ms"}
FORK_NAMES = {"mount": "mount_ms", "processes": "criu_wall_ms", "answer": "sockwait_ms"}
FORK_FIELDS = {**FORK_NAMES, "answer": "sock_wait_ms"}  # as the older documents name it


def with_phases(answer: Answer) -> Answer:
    """The answer of a verb that saved something, with a line ``phases …`` for each checkpoint."""
    lines = [
        f"phases {phases_text(named_phases(operation, SNAPSHOT_NAMES))}"
        for operation in answer.operations
        if operation.kind in (OperationKind.SNAPSHOT, OperationKind.PARK)
    ]
    return dataclasses.replace(answer, text="\n".join([answer.text, *lines])) if lines else answer


def named_phases(operation: OperationRecord, names: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds by name: the total, the steps that have an older name, and our other steps."""
    known = {names[name]: spent for name, spent in operation.phases_ms.items() if name in names}
    ours = {f"{name}_ms": spent for name, spent in operation.phases_ms.items() if name not in names}
    return {"total_ms": operation.total_ms or 0.0, **known, **ours}


def phases_text(phases: Mapping[str, float]) -> str:
    return " ".join(f"{name}={spent:.1f}" for name, spent in phases.items())
