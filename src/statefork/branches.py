"""A live branch of an environment, and what led to its present state."""

import threading

from statefork.backend import Command, Instance
from statefork.record import BranchRecord
from statefork.tree import SnapshotNode

__all__ = ["MAIN", "Branch"]

MAIN = "main"


class Branch:
    """A live branch. ``command_log`` is what was run since its last snapshot, with how it ended."""

    def __init__(self, branch_id: str, instance: Instance) -> None:
        self.id = branch_id
        self.instance = instance
        self.base_snapshot_id: str | None = None
        self.current_snapshot_id: str | None = None
        self.last_snapshot_id: str | None = None
        self.command_log: list[tuple[Command, int]] = []
        self.cumulative_exec_time = 0.0  # since the last physical snapshot
        self.is_replayable = True  # whether the commands alone lead here from the last snapshot
        self.operation_lock = threading.RLock()

    def note_command(self, command: Command, exit_code: int, elapsed_s: float) -> None:
        self.command_log.append((command, exit_code))
        self.cumulative_exec_time += elapsed_s

    def note_snapshot(self, node: SnapshotNode) -> None:
        self.current_snapshot_id = self.last_snapshot_id = node.snapshot_id
        self.command_log = []
        if not node.is_virtual:
            self.cumulative_exec_time = 0.0
            self.is_replayable = True

    def note_restored(self, node: SnapshotNode) -> None:
        self.current_snapshot_id = self.last_snapshot_id = node.snapshot_id
        self.command_log = []
        self.cumulative_exec_time = node.replay_seconds
        self.is_replayable = True

    def to_record(self) -> BranchRecord:
        return BranchRecord(
            instance=self.instance,
            base_snapshot_id=self.base_snapshot_id,
            current_snapshot_id=self.current_snapshot_id,
            last_snapshot_id=self.last_snapshot_id,
            command_log=list(self.command_log),
            cumulative_exec_time=self.cumulative_exec_time,
            is_replayable=self.is_replayable,
        )

    @classmethod
    def from_record(cls, branch_id: str, record: BranchRecord) -> "Branch":
        branch = cls(branch_id, record.instance)
        branch.base_snapshot_id = record.base_snapshot_id
        branch.current_snapshot_id = record.current_snapshot_id
        branch.last_snapshot_id = record.last_snapshot_id
        branch.command_log = list(record.command_log)
        branch.cumulative_exec_time = record.cumulative_exec_time
        branch.is_replayable = record.is_replayable
        return branch
