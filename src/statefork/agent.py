"""The shell inside an instance: our init is its first process and owns a terminal, so the shell is part of the state.

A backend says how init's socket is reached (:class:`Agent` with a function that connects); everything else, running
commands, time limits, disconnecting before a checkpoint, is the same for all of them.
"""

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from statefork.backend import Command, CommandResult
from statefork.errors import BackendFailed, CommandTimedOut
from waypoint.errors import Busy, SessionError, ShellError, WaypointError
from waypoint.errors import CommandTimedOut as ShellTimedOut
from waypoint.names import MAIN
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import run_command
from waypoint.session.creation.users import ROOT, User
from waypoint.shell.client import ShellClient
from waypoint.shell.profile import UNATTENDED_ENV, ShellProfile
from waypoint.shell.terminal import DEFAULT_SIZE, open_terminal

__all__ = ["Agent"]

Connect = Callable[[], ShellClient]


class Agent:
    """The shell of one instance. Nothing is kept open between calls, so a checkpoint finds no connection."""

    def __init__(self, backend: str, instance_id: str, connect: Connect) -> None:
        self._backend = backend
        self._address = _InstanceAddress(f"{backend} instance {instance_id}", connect)

    def open_shell(
        self,
        profile: ShellProfile,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        user: User = ROOT,
    ) -> None:
        """Start the shell; return when it is ready."""
        try:
            with self._address.connect("") as client:
                own = {} if user == ROOT else user.env
                variables = {**UNATTENDED_ENV, **own, **(env or {})}
                open_terminal(
                    *(client, MAIN, profile),
                    size=DEFAULT_SIZE,
                    cwd=cwd,
                    env=variables,
                    uid=user.uid,
                    gid=user.gid,
                    groups=user.groups,
                )
        except WaypointError as error:
            raise BackendFailed(self._backend, "start of the shell", str(error)) from error

    def run(self, command: Command, timeout_s: float | None) -> CommandResult:
        text = command if isinstance(command, str) else shlex.join(command)
        try:
            result = run_command(self._address, text, timeout_s=timeout_s)
        except ShellTimedOut as error:
            raise CommandTimedOut(error.timeout_s, error.output.decode(errors="replace")) from error
        except WaypointError as error:
            raise BackendFailed(self._backend, "exec", str(error), hint=_next_move(error)) from error
        return CommandResult(exit_code=result.exit_code, output=result.output)

    def is_alive(self) -> bool:
        try:
            with self._address.connect("") as client:
                client.ping()
        except (WaypointError, OSError):
            return False
        return True


def _next_move(error: WaypointError) -> str:
    """What can be done here. The hints of errors about sessions name commands for sessions, and this is not one."""
    if isinstance(error, Busy):
        return "wait until that has ended, or restore a snapshot"
    return "restore a snapshot" if isinstance(error, SessionError | ShellError) else error.hint


class _InstanceAddress(BranchAddress):
    """How commands reach an instance. StateFork runs one at a time in each, so there is nothing to lock."""

    def __init__(self, where: str, connect: Connect) -> None:
        self.where = where
        self._connect = connect

    def incarnation(self) -> str:
        return ""

    def terminal_lock(
        self, terminal: str, *, wait: bool, timeout_s: float | None
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def gate(self) -> AbstractContextManager[object]:
        return nullcontext()

    def has_limits(self, incarnation: str) -> bool:
        return False

    def record(self, kind: str, total_ms: float, phases_ms: Mapping[str, float]) -> None:
        """Commands are recorded by StateFork itself."""

    def connect(self, incarnation: str) -> ShellClient:
        return self._connect()

    def reconnect(self, incarnation: str, first: bytes = b"") -> ShellClient:
        client = self._connect()
        if first:
            client.send(first)
        return client
