"""Start instances from snapshots: physical ones from their image, virtual ones by running their commands again."""

import secrets
from collections.abc import Callable, Mapping, Sequence

from statefork.backend import Backend, Image, Instance
from statefork.branches import Branch
from statefork.errors import ReplayFailed
from statefork.tree import SnapshotNode

__all__ = ["SnapshotStart", "virtual_node"]


def virtual_node(branch: Branch, snapshot_id: str) -> SnapshotNode:
    """A snapshot that holds only the commands that the branch has run since its last one."""
    return SnapshotNode(
        snapshot_id=snapshot_id,
        parent_id=branch.last_snapshot_id,
        is_virtual=True,
        replay_commands=[command for command, _ in branch.command_log],
        replay_exit_codes=[code for _, code in branch.command_log],
        replay_seconds=branch.cumulative_exec_time,
    )


class SnapshotStart:
    """For one environment. A *lineage* leads from a physical snapshot, through virtual ones, to the one that is wanted.

    ``require`` raises if the environment has ended, so that a replay stops.
    """

    def __init__(self, backend: Backend, images: Mapping[str, Image], require: Callable[[], None]) -> None:
        self._backend = backend
        self._images = images
        self._require = require

    def spawn(self, lineage: Sequence[SnapshotNode], branch_id: str) -> Instance:
        """Make an instance of a snapshot: start its physical ancestor, then run the commands that led on from there."""
        instance = self._backend.spawn(self._image(lineage), branch_id)
        try:
            self._replay(instance, lineage)
        except BaseException:
            self._backend.discard(instance)
            raise
        return instance

    def replace(self, branch: Branch, lineage: Sequence[SnapshotNode]) -> None:
        """Bring a branch back to a snapshot. On failure it is as before, if need be in another instance."""
        if len(lineage) == 1:
            branch.instance = self._backend.replace(branch.instance, self._image(lineage), branch.id)
        elif self._backend.capabilities.concurrent_branches:
            self.supersede(branch, self.spawn(lineage, branch.id))
        else:
            self._replay_in_place(branch, lineage)

    def supersede(self, branch: Branch, successor: Instance) -> None:
        # If the instance had ended before, its successor may have its name.
        if successor != branch.instance:
            successor = self._backend.supersede(branch.instance, successor)
        branch.instance = successor

    def _replay_in_place(self, branch: Branch, lineage: Sequence[SnapshotNode]) -> None:
        """Where only one instance can live, it ends before its successor starts: save it, and restore it on failure."""
        image = self._image(lineage)
        if not self._backend.is_alive(branch.instance):
            branch.instance = self._backend.replace(branch.instance, image, branch.id)
            self._replay(branch.instance, lineage)
            return
        kept = self._backend.snapshot(branch.instance, f"before-{secrets.token_hex(4)}")
        try:
            branch.instance = self._backend.replace(branch.instance, image, branch.id)
            self._replay(branch.instance, lineage)
        except BaseException:
            branch.instance = self._backend.replace(branch.instance, kept, branch.id)
            raise
        finally:
            self._backend.delete(kept)

    def _replay(self, instance: Instance, lineage: Sequence[SnapshotNode]) -> None:
        for node in lineage[1:]:
            for command, expected in zip(node.replay_commands, node.replay_exit_codes, strict=True):
                self._require()
                got = self._backend.run(instance, command, None).exit_code
                if got != expected:
                    raise ReplayFailed(node.snapshot_id, command, expected, got)

    def _image(self, lineage: Sequence[SnapshotNode]) -> Image:
        return self._images[lineage[0].snapshot_id]
