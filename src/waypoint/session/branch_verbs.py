"""What can be done with one branch. A branch has these verbs, and so has a session: there they act on its branch ``main``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.errors import UsageError
from waypoint.model import CheckpointKind, CheckpointRecord
from waypoint.names import MAIN, parse_name
from waypoint.session.background.attendant import ensure_attendant
from waypoint.session.branch_files import BranchFiles
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import CommandResult, run_command, start_command
from waypoint.session.commands.isolated import Input, run_isolated, start_isolated
from waypoint.session.commands.jobs import Job, list_jobs
from waypoint.session.commands.stream import CommandStream
from waypoint.session.lifecycle.host_program import restore_with_program, snapshot_with_program
from waypoint.session.lifecycle.restore import restore_branch
from waypoint.session.lifecycle.snapshot import snapshot_branch
from waypoint.session.network.port_forwards import ensure_forwarder
from waypoint.session.terminals import open_and_type
from waypoint.shell.protocol import JobStatus, TerminalStatus
from waypoint.shell.terminal import WindowSize

if TYPE_CHECKING:
    from waypoint.shell.screen import Screen

__all__ = ["COLLECTED_BYTES_MAX", "BranchVerbs", "checkpoint_name"]

COLLECTED_BYTES_MAX = 64 << 20
"""How much output a command may write when it is collected in memory, unless the caller says otherwise."""


class BranchVerbs(BranchFiles):
    """Files, commands, jobs and terminals of one branch; it is saved and restored."""

    __slots__ = ()

    @property
    def address(self) -> BranchAddress:
        """How to reach the branch."""
        context, session, name = self._where()
        return BranchAddress(str(context.layout.state_dir), context.catalogue, session.id, name)

    @property
    def directory(self) -> Path:
        """Where the host sees the branch's live files; the same path after a restore."""
        context, session, name = self._where()
        return context.layout.live(session.id, name)

    # -- checkpoints

    def snapshot(
        self,
        name: str | None = None,
        *,
        files_only: bool = False,
        pid: int | None = None,
        wait: bool = True,
    ) -> CheckpointRecord:
        """Save the branch as it is now; it runs on.

        With ``files_only`` nothing of its processes is saved: who comes back to it finds a fresh shell. With ``pid``, a
        program of the host in the work directory of ``main``, that program is saved in their place.
        """
        context, session, branch = self._where()
        if pid is None:
            saved = snapshot_branch(context, session, branch, name, files_only=files_only, wait=wait)
        elif files_only or branch != MAIN:
            raise UsageError(
                "a program of the host is saved with all files of 'main', whose work directory it is in",
                hint="leave out the other branch, or files_only",
            )
        else:
            saved = snapshot_with_program(context, session, name, pid, wait=wait)
        ensure_attendant(context, session)
        return saved

    def restore(self, checkpoint: CheckpointRecord | str, *, wait: bool = True) -> CheckpointRecord:
        """Make the branch that checkpoint again; what was not saved is gone.

        If it holds a program of the host and this is ``main``, the program goes back too, with the pid it had.
        """
        context, session, branch = self._where()
        restored = context.catalogue.checkpoint(session.id, checkpoint_name(checkpoint))
        if restored.kind is CheckpointKind.PROCESS and branch == MAIN:
            restore_with_program(context, session, restored, wait=wait)
        else:
            restore_branch(context, session, branch, restored, wait=wait)
        ensure_attendant(context, session)
        ensure_forwarder(context, session)
        return restored

    # -- commands

    def exec(
        self,
        command: str,
        *,
        terminal: str = MAIN,
        timeout_s: float | None = None,
        wait: bool = True,
        on_output: Callable[[bytes], None] | None = None,
        output_limit: int | None = None,
    ) -> CommandResult:
        """Run ``command`` in the branch's shell; its effects on the shell stay.

        The exit code is the command's own. With ``on_output`` the output goes there as it comes and is not
        collected. A second caller waits its turn, or gets Busy with ``wait=False``.
        """
        return run_command(
            self.address,
            command,
            terminal=terminal,
            timeout_s=timeout_s,
            wait=wait,
            on_output=on_output,
            output_limit=_limit(output_limit, on_output),
        )

    def stream(
        self,
        command: str,
        *,
        terminal: str = MAIN,
        timeout_s: float | None = None,
        wait: bool = True,
        output_limit: int | None = None,
    ) -> CommandStream:
        """Run ``command`` as exec() does, and iterate over its output while it runs."""
        return CommandStream(
            self.address,
            command,
            terminal=terminal,
            timeout_s=timeout_s,
            wait=wait,
            output_limit=output_limit,
        )

    def exec_isolated(
        self,
        command: str | Sequence[str],
        *,
        stdin: Input = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[bytes], None] | None = None,
        on_errors: Callable[[bytes], None] | None = None,
        output_limit: int | None = None,
    ) -> CommandResult:
        """Run ``command`` (shell text, or a list of words) beside the shells, which it does not touch.

        Its outputs are apart (``output``, ``errors``). Any number may run at once, also while the shell is busy.
        """
        return run_isolated(
            self.address,
            command,
            stdin=stdin,
            cwd=cwd,
            env=env,
            user=user,
            timeout_s=timeout_s,
            on_output=on_output,
            on_errors=on_errors,
            output_limit=_limit(output_limit, on_output),
        )

    def start(self, command: str, *, terminal: str = MAIN, wait: bool = True) -> Job:
        """Start ``command`` in the branch's shell and leave it to itself. The shell is busy until it ends."""
        return Job(self.address, start_command(self.address, command, terminal=terminal, wait=wait))

    def start_isolated(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Job:
        """Start ``command`` beside the shells and leave it to itself."""
        return Job(self.address, start_isolated(self.address, command, cwd=cwd, env=env, user=user))

    # -- jobs

    def jobs(self) -> list[JobStatus]:
        """The commands that the branch keeps, running and ended, oldest first."""
        return list_jobs(self.address)

    def job(self, number: int) -> Job:
        return Job(self.address, number)

    # -- terminals

    def terminals(self) -> list[TerminalStatus]:
        return open_and_type.list_terminals(self.address)

    def open_terminal(
        self,
        name: str,
        *,
        size: WindowSize | None = None,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        attended: bool | None = None,
    ) -> None:
        """Open a terminal with a shell; what is not said is as the session was made.

        A name whose shell has ended gets a fresh one. ``attended`` is for people: a prompt, the line editor of
        bash, and no variables that tell programs that nobody is there.
        """
        open_and_type.new_terminal(
            self.address, name, size=size, shell=shell, cwd=cwd, env=env, attended=attended
        )

    def close_terminal(self, name: str) -> None:
        open_and_type.close_terminal(self.address, name)

    def resize(self, size: WindowSize, *, terminal: str = MAIN) -> None:
        """Give a terminal (rows, columns); its programs get SIGWINCH."""
        open_and_type.resize_terminal(self.address, terminal, size)

    def interrupt(self, *, terminal: str = MAIN) -> None:
        """As the key Ctrl-C does: SIGINT for what runs in the foreground."""
        open_and_type.signal_terminal(self.address, terminal, signal.SIGINT)

    def send(self, *keys: str, terminal: str = MAIN, literal: bool = False) -> None:
        """Type text and named keys (``Enter``, ``C-c``, ``Up``), as ``tmux send-keys`` does."""
        open_and_type.send_keys(self.address, terminal, keys, literal=literal)

    def screen(self, *, terminal: str = MAIN, scrollback: int = 0) -> Screen:
        """What the terminal shows now."""
        from waypoint.session.terminals.screen import (
            read_screen,  # the emulator, which most callers do without
        )

        return read_screen(self.address, terminal, scrollback)

    def wait_for(
        self,
        *,
        text: str | None = None,
        idle_ms: float | None = None,
        exit: bool = False,
        terminal: str = MAIN,
        timeout_s: float | None = None,
    ) -> Screen:
        """Wait until the screen shows ``text``, or is quiet for ``idle_ms``, or its command has ended."""
        from waypoint.session.terminals.screen import wait_for  # as above

        return wait_for(self.address, terminal, text=text, idle_ms=idle_ms, exit=exit, timeout_s=timeout_s)


def _limit(output_limit: int | None, on_output: Callable[[bytes], None] | None) -> int | None:
    return COLLECTED_BYTES_MAX if output_limit is None and on_output is None else output_limit


def checkpoint_name(checkpoint: CheckpointRecord | str, what: str = "checkpoint") -> str:
    """The name of a checkpoint that a caller has named or has at hand. Raises InvalidName, for a ``what``."""
    return parse_name(what, checkpoint if isinstance(checkpoint, str) else checkpoint.name)
