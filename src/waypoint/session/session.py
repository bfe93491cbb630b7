"""The public handles: a session, and a branch of it. They hold no state; the catalogue does.

Each method imports what it needs when it is called, as in :mod:`waypoint.session.branch_verbs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.errors import NotFound, UsageError
from waypoint.model import BranchRecord, CheckpointKind, CheckpointRecord, OperationRecord, SessionRecord
from waypoint.names import MAIN, parse_name
from waypoint.session.background.start import start_background
from waypoint.session.branch_verbs import BranchVerbs, checkpoint_name
from waypoint.session.context import Context

if TYPE_CHECKING:
    from waypoint.session.network.port_forwards import ExposedPort
    from waypoint.session.status import SessionStatus

__all__ = ["Branch", "Session"]

FORKS_MAX = 256


@dataclass(frozen=True, slots=True)
class Branch(BranchVerbs):
    """One live environment of a session."""

    session: Session
    name: str

    @property
    def record(self) -> BranchRecord:
        return self.session.context.catalogue.branch(self.session.id, self.name)

    def is_running(self) -> bool:
        return self.session.context.is_running(self.record)

    @property
    def pid(self) -> int | None:
        """The host's pid of its process 1; None if that has ended, as another process may have the number by now."""
        record = self.record
        return record.init_pid if self.session.context.is_running(record) else None

    def usage(self) -> dict[str, float]:
        """What the branch uses now: ``cpu_s``, and for each limit of the session what is used of it.

        Empty for a branch that does not run.
        """
        from waypoint.engine.usage import branch_usage

        context, limits = self.session.context, self.session.record.settings.limits
        return branch_usage(context.platform, limits, self.record.incarnation)

    def _where(self) -> tuple[Context, SessionRecord, str]:
        return self.session.context, self.session.record, self.name

    def park(self, name: str | None = None, *, wait: bool = True) -> CheckpointRecord:
        """Save the branch and end it, in one operation; its name is then free. ``main`` cannot be parked."""
        from waypoint.session.lifecycle.park import park_branch
        from waypoint.session.network.port_forwards import settle_forwarder

        parked = park_branch(self.session.context, self.session.record, self.name, name, wait=wait)
        settle_forwarder(self.session.context, self.session.id)
        return parked

    def promote(self, over: str = MAIN, *, wait: bool = True) -> Branch:
        """Give this branch the name ``over``; what the branch ``over`` was is given up. Returns the renamed branch."""
        from waypoint.session.lifecycle.promote import promote_branch

        promote_branch(
            self.session.context, self.session.record, self.name, parse_name("branch", over), wait=wait
        )
        return Branch(self.session, over)

    def destroy(self, *, wait: bool = True) -> None:
        """End the branch; its checkpoints stay."""
        from waypoint.session.lifecycle.remove import destroy_branch
        from waypoint.session.network.port_forwards import settle_forwarder

        destroy_branch(self.session.context, self.session.record, self.name, wait=wait)
        settle_forwarder(self.session.context, self.session.id)

    def expose(self, port: int, host_port: int | None = None) -> ExposedPort:
        """Forward a port of the host's loopback to a TCP port of this branch, also after restores.

        ``host_port`` is by default the same number if that is free, else any free one.
        """
        from waypoint.session.network.port_forwards import expose_port

        expose_port(self.session.context, self.session.record, self.name, port, host_port)
        return next(e for e in self.session.ports() if (e.branch, e.port) == (self.name, port))

    def unexpose(self, port: int) -> None:
        """Stop forwarding to that port; open connections end."""
        from waypoint.session.network.port_forwards import unexpose_port

        unexpose_port(self.session.context, self.session.record, self.name, port)


@dataclass(frozen=True, slots=True)
class Session(BranchVerbs):
    """A base, a tree of checkpoints, and live branches. Its verbs act on the branch ``main``."""

    context: Context
    record: SessionRecord

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def main(self) -> Branch:
        return Branch(self, MAIN)

    @property
    def work_directory(self) -> Path | None:
        """Where the host has the workspace of ``main`` mounted, if the session has a work directory."""
        work_dir = self.record.settings.work_dir
        return None if work_dir is None else Path(work_dir)

    def _where(self) -> tuple[Context, SessionRecord, str]:
        return self.context, self.record, MAIN

    def branch(self, name: str) -> Branch:
        """A live branch by name. Raises NotFound."""
        parse_name("branch", name)
        self.context.catalogue.branch(self.id, name)
        return Branch(self, name)

    def branches(self) -> list[Branch]:
        return [Branch(self, record.name) for record in self.context.catalogue.branches(self.id)]

    def checkpoints(self) -> list[CheckpointRecord]:
        """All checkpoints, oldest first."""
        return self.context.catalogue.checkpoints(self.id)

    def status(self, *, with_files: bool = False) -> SessionStatus:
        """The session, its branches and checkpoints at one moment; ``with_files`` adds how large checkpoints are."""
        from waypoint.session.status import read_status

        return read_status(self.context, self.id, with_files=with_files)

    def operations(self) -> list[OperationRecord]:
        """All operations on the session, oldest first, with the time each step took."""
        return self.context.catalogue.operations(self.id)

    def ports(self) -> list[ExposedPort]:
        """The ports of its branches that are exposed on the host's loopback."""
        from waypoint.session.network.port_forwards import exposed_ports

        return exposed_ports(self.context, self.record)

    def program_pid(self, checkpoint: CheckpointRecord) -> int | None:
        """The pid of the host program that a checkpoint holds, if it holds one."""
        if checkpoint.kind is not CheckpointKind.PROCESS:
            return None
        from waypoint.session.lifecycle.host_program import program_of

        return program_of(self.context, checkpoint).pid

    def fork(
        self,
        source: CheckpointRecord | Branch | str,
        *,
        n: int | None = None,
        ids: list[str] | None = None,
    ) -> list[Branch]:
        """Make ``n`` live branches from a checkpoint, or from a live branch (which is saved first).

        They are made in parallel, each whole or not at all. ``ids`` names them.
        """
        from waypoint.session.lifecycle.branch_lock import check_new_names, default_branch_names
        from waypoint.session.lifecycle.fork import fork_checkpoint

        if ids is not None and n is not None and len(ids) != n:
            raise UsageError(
                f"{n} branches but {len(ids)} names",
                hint="give only one of the two, or as many names as branches",
            )
        count = n if n is not None else len(ids) if ids is not None else 1
        if not 1 <= count <= FORKS_MAX:
            raise UsageError(
                f"cannot make {count} branches at once", hint=f"ask for 1 to {FORKS_MAX}; fork again for more"
            )
        check_new_names(self.context, self.id, ids or [])
        checkpoint = self._fork_source(source)
        names = ids or default_branch_names(self.context, self.id, count)
        made = fork_checkpoint(self.context, self.record, checkpoint, names)
        start_background(self.context, self.record)
        return [Branch(self, record.name) for record in made]

    @property
    def is_suspended(self) -> bool:
        """Whether all of its branches are suspended."""
        return all(record.is_suspended for record in self.context.catalogue.branches(self.id))

    def suspend(self, *, drop: bool = False) -> list[CheckpointRecord]:
        """Suspend the session to disk: save every live branch as a checkpoint of its own, then end it.

        With ``drop`` what was not saved is given up: each branch will be restored at its head. Returns the checkpoints
        at which the branches will be restored; one that was never saved has none, and starts again from its base.
        """
        from waypoint.session.background.attendant import await_attendant_end
        from waypoint.session.lifecycle.suspend import suspend_session
        from waypoint.session.network.port_forwards import settle_forwarder

        points = suspend_session(self.context, self.record, drop=drop)
        settle_forwarder(self.context, self.id)
        if self.is_suspended:
            await_attendant_end(self.context, self.record)
        return points

    def resume(self) -> list[Branch]:
        """Restore every suspended branch at its saved point, with its port forwards. If there is none, do nothing."""
        from waypoint.session.lifecycle.resume import resume_session
        from waypoint.session.network.port_forwards import restore_port_forwards

        try:
            resumed = resume_session(self.context, self.record)
        finally:  # some branches may be running although others failed
            start_background(self.context, self.record)
            restore_port_forwards(self.context, self.record)
        return [Branch(self, record.name) for record in resumed]

    def destroy(self, branch: str, *, wait: bool = True) -> None:
        self.branch(branch).destroy(wait=wait)

    def cleanup(self, *, force: bool = False) -> None:
        """Remove the session with everything in it."""
        from waypoint.session.background.attendant import await_attendant_end
        from waypoint.session.lifecycle.remove import cleanup_session

        cleanup_session(self.context, self.record, force=force)
        await_attendant_end(self.context, self.record)

    def _fork_source(self, source: CheckpointRecord | Branch | str) -> CheckpointRecord:
        if isinstance(source, Branch):
            return source.snapshot()
        name = checkpoint_name(source, "checkpoint or branch")
        catalogue = self.context.catalogue
        if any(record.name == name for record in catalogue.branches(self.id)):
            return Branch(self, name).snapshot()
        try:
            return catalogue.checkpoint(self.id, name)
        except NotFound as error:
            raise NotFound(
                "checkpoint or branch", name, hint=f"waypoint list {self.id} shows both"
            ) from error
