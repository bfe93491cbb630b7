"""One environment on any backend: branches, a tree of snapshots, replay, statistics. Failures are raised.

:class:`Environment` is the typed core. The published interface, whose methods return ``None`` and ``False``, is a thin
layer over it: :mod:`statefork.manager`.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from statefork.arguments import check_command, check_fork, check_path, check_snapshot_id, check_timeout
from statefork.backend import Backend, Capabilities, Command, CommandResult, Instance
from statefork.branches import MAIN, Branch
from statefork.calculators import snapshot_sizes
from statefork.deciders import AlwaysTrueDecider, Decider, DecisionContext
from statefork.errors import (
    BranchExists,
    ForkIncomplete,
    SnapshotExists,
    StateForkError,
    UnknownBranch,
    Unsupported,
    WrongUse,
)
from statefork.lifetime import Lifetime
from statefork.record import EnvironmentDirectory, EnvironmentRecord
from statefork.snapshot_start import SnapshotStart, virtual_node
from statefork.stats import BenchmarkStats
from statefork.tree import SnapshotNode, SnapshotTree

__all__ = ["Environment"]

FORKS_AT_ONCE = 16


class Environment:
    """A live environment with its history; as a context manager, it cleans up at the end.

    Safe for threads: different branches work in parallel, one branch does one thing at a time. Closing waits for the
    snapshots, restores and forks that are under way, and ends the commands that still run.
    """

    def __init__(
        self,
        backend: Backend,
        directory: EnvironmentDirectory,
        record: EnvironmentRecord,
        *,
        decider: Decider | None = None,
    ) -> None:
        self.backend = backend
        self.decider = decider or AlwaysTrueDecider()
        self.stats = BenchmarkStats(record.history)
        self.tree = SnapshotTree()
        for node in record.nodes:
            self.tree.nodes[node.snapshot_id] = node
        self.images = dict(record.images)
        self._directory = directory
        self._record = record
        self._branches = {name: Branch.from_record(name, kept) for name, kept in record.branches.items()}
        self._lifetime = Lifetime()
        self._state = self._lifetime.state
        self._snapshot_start = SnapshotStart(backend, self.images, self._lifetime.require)
        self.stats.attach_sizes(self._sizes)

    def __enter__(self) -> "Environment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- looking

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def is_closed(self) -> bool:
        return self._lifetime.end != ""

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def current_branch_id(self) -> str:
        return self._record.current_branch_id

    def branches(self) -> list[Branch]:
        with self._state:
            return list(self._branches.values())

    def branch(self, branch_id: str | None = None) -> Branch:
        """A live branch; without an id the current one. Raises UnknownBranch."""
        with self._state:
            self._lifetime.require()
            name = self.current_branch_id if branch_id is None else branch_id
            if name not in self._branches:
                raise UnknownBranch(name)
            return self._branches[name]

    def draw_tree(self) -> str:
        with self._state:
            current = {branch.id: branch.current_snapshot_id for branch in self._branches.values()}
            last = {branch.id: branch.last_snapshot_id for branch in self._branches.values()}
            return self.tree.draw(current, last)

    # -- starting

    def start(self) -> None:
        """Make the branch ``main``. If that fails, remove the environment."""
        try:
            self._save()  # first: if we are killed now, what is left can be found and cleaned up
            with self.stats.timed("container", MAIN, MAIN):
                instance = self.backend.start(MAIN)
            self._publish_branch(Branch(MAIN, instance))
        except BaseException:
            self.close()
            raise

    def adopt(self, instance: Instance) -> None:
        """Take over an instance that someone else made, as the branch ``main``, with the images its mechanism knows."""
        self.adopt_images()
        with self._state:
            main = self._branches.get(MAIN) or Branch(MAIN, instance)
            main.instance = instance
            main.is_replayable = False  # others may have changed it since we left it
            self._publish_branch(main)

    def adopt_images(self) -> int:
        """Add the images that the mechanism has and we do not know of yet; return how many."""
        with self._state:
            self._lifetime.require()
            fresh = [
                (image, parent)
                for image, parent in self.backend.known_images()
                if image.id not in self.images
            ]
            for image, parent in fresh:
                self.images[image.id] = image
                self.tree.add(SnapshotNode(snapshot_id=image.id, parent_id=parent))
            self._save()
            return len(fresh)

    # -- working

    def run(
        self, command: Command, *, branch_id: str | None = None, timeout_s: float | None = None
    ) -> CommandResult:
        """Run a command in a branch, and remember it, so that a virtual snapshot can repeat it."""
        check_command(command)
        check_timeout(timeout_s)
        command = command if isinstance(command, str) else list(command)
        with self._holding(branch_id) as branch:
            began = time.perf_counter()
            try:
                result = self.backend.run(branch.instance, command, timeout_s)
            except BaseException:
                branch.is_replayable = False  # nobody knows how far it came
                raise
            else:
                branch.note_command(command, result.exit_code, time.perf_counter() - began)
                return result
            finally:
                self.stats.add_entry("exec", branch.id, time.perf_counter() - began, branch.id)
                self._save()

    def copy_in(self, source: Path, path: str, *, branch_id: str | None = None) -> None:
        """Copy a file or directory of the host into a branch, and make the directories that are missing.

        Into an existing directory, a directory is merged and a file is put; anything else is replaced. If ``source`` or
        ``path`` is a link, it is followed; links in a directory stay links.
        """
        check_path(path)
        with self._holding(branch_id) as branch:
            branch.is_replayable = False
            self._save()
            self.backend.copy_in(branch.instance, source, path)

    def copy_out(self, path: str, target: Path, *, branch_id: str | None = None) -> None:
        """Copy a file or directory of a branch to the host, by the rules of :meth:`copy_in`."""
        check_path(path)
        with self._holding(branch_id) as branch:
            self.backend.copy_out(branch.instance, path, target)

    # -- saving

    def snapshot(
        self, branch_id: str | None = None, *, park: bool = False, snapshot_id: str | None = None
    ) -> SnapshotNode:
        """Save a branch, or only record the commands that lead there: the decider says which. The branch keeps running.

        With ``park`` the branch ends afterwards, and the snapshot is always physical. Its id is ``snapshot_id`` if given.
        """
        chosen = [] if snapshot_id is None else [check_snapshot_id(snapshot_id)]
        with (
            self._holding(branch_id) as branch,
            self._lifetime.making(),
            self._lifetime.promised(chosen, self.tree.nodes, refuse=SnapshotExists),
        ):
            if park and branch.id == MAIN:
                raise WrongUse("the branch 'main' cannot be parked", hint="snapshot it, or clean up")
            is_physical = park or self._is_worth_it(branch)
            name = snapshot_id or (secrets.token_hex(4) if is_physical else f"v{secrets.token_hex(4)[:7]}")
            node = self._save_physical(branch, name, park=park) if is_physical else virtual_node(branch, name)
            with self._state:
                self.tree.add(node)
                branch.note_snapshot(node)
            self._save()
            if park:
                with self.stats.timed("park", node.snapshot_id, branch.id):
                    self._end_branch(branch)
            return node

    def _is_worth_it(self, branch: Branch) -> bool:
        if branch.last_snapshot_id is None or not branch.is_replayable:
            return True
        pid = self.backend.process_id(branch.instance)
        context = DecisionContext(
            branch.cumulative_exec_time, -1 if pid is None else pid, self.stats.median("snapshot")
        )
        return self.decider.decide(context)

    def _save_physical(self, branch: Branch, snapshot_id: str, *, park: bool) -> SnapshotNode:
        with self.stats.timed("snapshot", snapshot_id, branch.id):
            save = self.backend.park if park else self.backend.snapshot
            image = save(branch.instance, snapshot_id)
        with self._state:
            self.images[snapshot_id] = image
        return SnapshotNode(snapshot_id=snapshot_id, parent_id=branch.last_snapshot_id)

    # -- going back

    def restore(self, snapshot_id: str, *, branch_id: str | None = None, discard_first: bool = False) -> None:
        """Bring a branch back to a snapshot. On failure the branch is as before.

        With ``discard_first`` the branch is ended before its successor is made, for states that cannot live twice; a
        failure then loses the branch.
        """
        with self._holding(branch_id) as branch, self._lifetime.making():
            with self._state:
                lineage = self.tree.lineage(snapshot_id)
            try:
                with self.stats.timed("restore", snapshot_id, branch.id):
                    if discard_first and self.capabilities.concurrent_branches:
                        self._discard_then_start(branch, lineage)
                    else:
                        self._snapshot_start.replace(branch, lineage)
                branch.note_restored(lineage[-1])
            finally:
                self._save()  # after a failure too: the branch may be another instance now

    def _discard_then_start(self, branch: Branch, lineage: Sequence[SnapshotNode]) -> None:
        is_current = self.current_branch_id == branch.id
        with self._lifetime.promised([branch.id], (), refuse=BranchExists):  # the id would be free in between
            self._end_branch(branch)
            self._snapshot_start.supersede(branch, self._snapshot_start.spawn(lineage, branch.id))
            with self._state:
                self._branches[branch.id] = branch
                if is_current:
                    self._record.current_branch_id = branch.id

    # -- branching

    def fork(self, snapshot_id: str, *, n: int = 1, ids: Sequence[str] | None = None) -> list[Branch]:
        """Start ``n`` new branches from a snapshot, in parallel.

        Each is made whole or not at all; ForkIncomplete names those that failed.
        """
        if not self.capabilities.concurrent_branches:
            raise Unsupported(self.backend.name, "keep several branches alive at once")
        check_fork(n, ids)
        names = [f"fork-{secrets.token_hex(4)}" for _ in range(n)] if ids is None else list(ids)
        if MAIN in names:
            raise BranchExists(MAIN)
        with self._lifetime.making(), self._lifetime.promised(names, self._branches, refuse=BranchExists):
            return self._fork_all(snapshot_id, names)

    def _fork_all(self, snapshot_id: str, names: Sequence[str]) -> list[Branch]:
        with self._state:
            lineage = self.tree.lineage(snapshot_id)
        made: list[Branch] = []
        failures: dict[str, StateForkError] = {}
        with ThreadPoolExecutor(min(len(names), FORKS_AT_ONCE)) as pool:
            pending = {name: pool.submit(self._fork_one, lineage, name) for name in names}
        for name, future in pending.items():
            try:
                made.append(future.result())
            except StateForkError as error:
                failures[name] = error
        self._list_in_order(made)
        if failures:
            raise ForkIncomplete([branch.id for branch in made], failures)
        return made

    def _list_in_order(self, made: Sequence[Branch]) -> None:
        """List the new branches in the order in which they were asked for; they became ready in any order."""
        with self._state:
            for branch in made:
                if self._branches.pop(branch.id, None) is not None:
                    self._branches[branch.id] = branch
            self._save()

    def _fork_one(self, lineage: Sequence[SnapshotNode], branch_id: str) -> Branch:
        snapshot_id = lineage[-1].snapshot_id
        with self.stats.timed("fork", snapshot_id, branch_id):
            instance = self._snapshot_start.spawn(lineage, branch_id)
        branch = Branch(branch_id, instance)
        branch.base_snapshot_id = snapshot_id
        branch.note_restored(lineage[-1])
        self._publish_branch(branch)
        return branch

    def switch(self, branch_id: str) -> None:
        """Make a branch the current one."""
        with self._state:
            self._record.current_branch_id = self.branch(branch_id).id
            self._save()

    def discard(self, branch_id: str) -> None:
        """End a branch; its snapshots stay. Refuses ``main`` and the current branch."""
        if branch_id == MAIN:
            raise WrongUse("the branch 'main' cannot be discarded", hint="clean up the environment instead")
        if branch_id == self.current_branch_id:
            raise WrongUse(f"{branch_id!r} is the current branch", hint="switch to another one first")
        with self._holding(branch_id) as branch:
            self._end_branch(branch)

    def _end_branch(self, branch: Branch) -> None:
        self.backend.discard(branch.instance)
        with self._state:
            self._branches.pop(branch.id, None)
            if self._record.current_branch_id == branch.id:
                self._record.current_branch_id = MAIN
            self._save()

    # -- ending

    def close(self) -> None:
        """Remove the environment with its branches, snapshots and record. A second call does nothing."""
        with self._lifetime.ending("cleaned up") as is_open:
            if not is_open:
                return
            for branch in self._branches.values():
                self.backend.discard(branch.instance)
            # Not image by image: an instance that a killed process made, and did not record, may hold one.
            self.backend.close()
            self._directory.remove()
            self._branches.clear()

    def forget(self) -> None:
        """Remove only the record of the environment: for when what it has cannot be reached."""
        with self._lifetime.ending("cleaned up") as is_open:
            if is_open:
                self._directory.remove()

    def leave(self) -> None:
        """Release the environment without ending it; it can be opened again by its id."""
        with self._lifetime.ending("left") as is_open:
            if is_open:
                self._save()
                self._directory.release()

    # -- internal

    @contextmanager
    def _holding(self, branch_id: str | None) -> Iterator[Branch]:
        branch = self.branch(branch_id)
        with branch.operation_lock:
            if self.branch(branch.id) is not branch:  # discarded, and perhaps made again, while we waited
                raise UnknownBranch(branch.id)
            yield branch

    def _publish_branch(self, branch: Branch) -> None:
        with self._state:
            self._branches[branch.id] = branch
            self._save()

    def _save(self) -> None:
        with self._state:
            if self.is_closed:  # by another thread, while this one worked
                return
            self._record.branches = {name: branch.to_record() for name, branch in self._branches.items()}
            self._record.nodes = list(self.tree.nodes.values())
            self._record.images = dict(self.images)
            self._record.history = self.stats.entries
            self._directory.save(self._record)

    def _sizes(self) -> dict[str, dict[str, int]]:
        with self._state:
            return snapshot_sizes(self.backend, self.images)
