"""The published interface: methods that return ``None``, ``False`` or ``(-1, "", message)`` when something fails.

With ``strict=True`` they raise instead, as :attr:`EnvironmentManager.core` always does.
"""

import atexit
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from statefork.backend import Capabilities, Command, Image
from statefork.branches import Branch
from statefork.environment import Environment
from statefork.errors import CommandTimedOut, ForkIncomplete, StateForkError
from statefork.stats import BenchmarkStats
from statefork.tree import SnapshotNode

__all__ = ["EnvironmentBranch", "EnvironmentManager", "ForkableEnvironmentManager"]

log = logging.getLogger(__name__)

FAILED = -1
TIMED_OUT = -2


@dataclass(frozen=True, slots=True)
class EnvironmentBranch:
    """A branch as callers see it; ``status`` is ``running``, ``failed`` if it has ended by itself and can only be
    restored, or ``unknown`` if the backend cannot be asked."""

    id: str
    base_snapshot_id: str | None
    status: str = "running"

    @property
    def base_checkpoint(self) -> str | None:
        return self.base_snapshot_id


class EnvironmentManager:
    """An environment that can be saved and restored; as a context manager, it cleans up at the end."""

    def __init__(self, core: Environment, *, strict: bool = False) -> None:
        self.core = core
        self.strict = strict
        _watch(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.cleanup()

    # -- looking

    @property
    def backend(self) -> str:
        return self.core.backend.name

    @property
    def capabilities(self) -> Capabilities:
        return self.core.capabilities

    @property
    def stats(self) -> BenchmarkStats:
        return self.core.stats

    @property
    def is_cleaned_up(self) -> bool:
        return self.core.is_closed

    @property
    def current_snapshot(self) -> str | None:
        """The last snapshot that the current branch was saved as, restored to or forked from."""
        at = {branch.id: branch.current_snapshot_id for branch in self.core.branches()}
        return at.get(self.core.current_branch_id)

    @property
    def snapshots(self) -> Mapping[str, Image]:
        """The physical snapshots by id, each with its image."""
        return dict(self.core.images)

    @property
    def snapshot_graph(self) -> Mapping[str, SnapshotNode]:
        return dict(self.core.tree.nodes)

    def list_snapshots(self) -> list[str]:
        """The ids of all snapshots, oldest first."""
        return list(self.core.tree.nodes)

    def print_snapshot_tree(self) -> str:
        return self.core.draw_tree()

    # -- doing

    def snapshot(self) -> str | None:
        """Save the current branch; returns the snapshot's id: 8 hexadecimal digits, of a virtual one ``v`` and 7."""
        return self._snapshot(None)

    def restore(self, snapshot_id: str) -> bool:
        """Bring the current branch back to a snapshot."""
        try:
            self.core.restore(snapshot_id)
        except StateForkError as error:
            return self._failed("restore", error)
        return True

    def create_env_from_snapshot(self, snapshot_id: str) -> str | None:
        """Restore the branch, as only one can live here; returns its id."""
        return self.core.current_branch_id if self.restore(snapshot_id) else None

    def exec_command(self, command: Command, timeout: float | None = None) -> tuple[int, str, str]:
        """Run a line for the shell, or the words of one command; returns exit code, output and errors."""
        return self._exec(None, command, timeout)

    def copy_in(self, host_src: str | Path, path: str) -> bool:
        return self._copy_in(None, host_src, path)

    def copy_out(self, path: str, host_dst: str | Path) -> bool:
        return self._copy_out(None, path, host_dst)

    def cleanup(self) -> bool:
        """End the environment and remove all that it has. A second call does nothing."""
        try:
            self.core.close()
        except StateForkError as error:
            return self._failed("cleanup", error)
        return True

    # -- internal

    def _failed(self, operation: str, error: StateForkError) -> bool:
        if self.strict:
            raise error
        log.error("%s failed: %s", operation, error)
        return False

    def _snapshot(self, branch_id: str | None, *, park: bool = False) -> str | None:
        try:
            return self.core.snapshot(branch_id, park=park).snapshot_id
        except StateForkError as error:
            self._failed("snapshot", error)
            return None

    def _exec(self, branch_id: str | None, command: Command, timeout: float | None) -> tuple[int, str, str]:
        try:
            result = self.core.run(command, branch_id=branch_id, timeout_s=timeout)
        except CommandTimedOut as error:
            self._failed("exec", error)
            return TIMED_OUT, error.output, f"[timeout after {error.timeout_s:g}s]"
        except StateForkError as error:
            self._failed("exec", error)
            return FAILED, "", str(error)
        return result.exit_code, result.output, result.errors

    def _copy_in(self, branch_id: str | None, host_src: str | Path, path: str) -> bool:
        try:
            self.core.copy_in(Path(host_src).absolute(), path, branch_id=branch_id)
        except StateForkError as error:
            return self._failed("copy_in", error)
        return True

    def _copy_out(self, branch_id: str | None, path: str, host_dst: str | Path) -> bool:
        try:
            self.core.copy_out(path, Path(host_dst).absolute(), branch_id=branch_id)
        except StateForkError as error:
            return self._failed("copy_out", error)
        return True


class ForkableEnvironmentManager(EnvironmentManager):
    """An environment of which several branches can live at once."""

    @property
    def current_branch_id(self) -> str:
        return self.core.current_branch_id

    @property
    def live_branches(self) -> Mapping[str, EnvironmentBranch]:
        return {branch.id: branch for branch in self.list_branches()}

    def list_branches(self) -> list[EnvironmentBranch]:
        return [self._view(branch) for branch in self.core.branches()]

    def _view(self, branch: Branch) -> EnvironmentBranch:
        return EnvironmentBranch(branch.id, branch.base_snapshot_id, self._status(branch))

    def _status(self, branch: Branch) -> str:
        try:
            return "running" if self.core.backend.is_alive(branch.instance) else "failed"
        except StateForkError:
            return "unknown"

    def fork(self, snapshot_id: str, n: int = 1, ids: Sequence[str] | None = None) -> list[EnvironmentBranch]:
        """Start new branches from a snapshot, in parallel; those that failed are left out."""
        try:
            return [self._view(branch) for branch in self.core.fork(snapshot_id, n=n, ids=ids)]
        except ForkIncomplete as error:
            self._failed("fork", error)
            return [self._view(branch) for branch in self.core.branches() if branch.id in error.made]
        except StateForkError as error:
            self._failed("fork", error)
            return []

    def exec_on_branch(
        self, branch_id: str, command: Command, timeout: float | None = None
    ) -> tuple[int, str, str]:
        return self._exec(branch_id, command, timeout)

    def snapshot_branch(self, branch_id: str, *, park: bool = False) -> str | None:
        """Save a branch; with ``park`` end it afterwards, so that its id can be used again."""
        return self._snapshot(branch_id, park=park)

    def park_branch(self, branch_id: str) -> str | None:
        return self._snapshot(branch_id, park=True)

    def discard_branch(self, branch_id: str) -> bool:
        """End a branch without saving it. Refuses ``main`` and the current one."""
        try:
            self.core.discard(branch_id)
        except StateForkError as error:
            return self._failed("discard", error)
        return True

    def copy_in_branch(self, branch_id: str, host_src: str | Path, path: str) -> bool:
        return self._copy_in(branch_id, host_src, path)

    def copy_out_branch(self, branch_id: str, path: str, host_dst: str | Path) -> bool:
        return self._copy_out(branch_id, path, host_dst)

    def checkout(self, branch_id: str) -> bool:
        """Make a branch the current one."""
        try:
            self.core.switch(branch_id)
        except StateForkError as error:
            return self._failed("checkout", error)
        return True

    def restore_discard_first(self, snapshot_id: str) -> bool:
        """As :meth:`restore`, but end the branch first: for states that cannot live twice. May lose the branch."""
        try:
            self.core.restore(snapshot_id, discard_first=True)
        except StateForkError as error:
            return self._failed("restore", error)
        return True

    def create_env_from_snapshot(self, snapshot_id: str) -> str | None:
        """Fork a snapshot and make the new branch the current one; returns its id."""
        made = self.fork(snapshot_id)
        return made[0].id if made and self.checkout(made[0].id) else None

    def sync_snapshot_tree(self) -> int:
        """Add the snapshots that the mechanism has and we do not know of yet; returns how many."""
        try:
            return self.core.adopt_images()
        except StateForkError as error:
            self._failed("sync", error)
            return 0

    # The names that the first forkable version had.
    destroy_fork = discard_branch
    list_forks = list_branches

    @property
    def live_forks(self) -> Mapping[str, EnvironmentBranch]:
        return self.live_branches

    @property
    def current_fork_id(self) -> str:
        return self.current_branch_id


_watched: list[tuple[int, Environment]] = []


def _watch(core: Environment) -> None:
    """When the program ends, clean the environment up unless it was cleaned up or left before."""
    _watched[:] = [(pid, known) for pid, known in _watched if not known.is_closed]
    _watched.append((os.getpid(), core))


@atexit.register
def _clean_up_forgotten() -> None:
    for pid, core in _watched:
        if pid != os.getpid() or core.is_closed:  # after a fork, our parent's are not ours
            continue
        try:
            core.close()
        except StateForkError as error:
            log.error("cleanup of environment %s failed: %s", core.id, error)
