"""The verbs of one branch. A session has them too: there they act on its branch ``main``.

Each verb imports what it needs when it is called: a command line runs only one (adr 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waypoint.errors import UsageError
from waypoint.model import CheckpointKind, CheckpointRecord
from waypoint.names import MAIN, parse_name
from waypoint.session.background.start import start_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from waypoint.kernel.copy.tar_stream import Readable, Writable
    from waypoint.model import CopyResult
    from waypoint.session import branch_files
    from waypoint.session.branch_files import Where
    from waypoint.session.commands.branch_address import BranchAddress
    from waypoint.session.commands.exec import CommandResult
    from waypoint.session.commands.isolated import Input
    from waypoint.session.commands.jobs import Job
    from waypoint.session.commands.stream import CommandStream
    from waypoint.shell.protocol import JobStatus, TerminalStatus
    from waypoint.shell.screen import Screen
    from waypoint.shell.terminal import WindowSize

__all__ = ["COLLECTED_BYTES_MAX", "BranchVerbs", "checkpoint_name"]

COLLECTED_BYTES_MAX = 64 << 20
"""How much output a command may write when it is collected in memory, unless the caller says otherwise."""


class BranchVerbs:
    """Commands, jobs, terminals and files of one branch; it is saved and restored."""

    __slots__ = ()

    def _where(self) -> Where:
        """The branch that the verbs act on."""
        raise NotImplementedError

    @property
    def address(self) -> BranchAddress:
        """How to reach the branch."""
        from waypoint.session.commands.branch_address import BranchAddress

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
        """Save the branch as it is now; it keeps running.

        With ``files_only`` its processes are not saved: a restore starts a fresh shell. With ``pid``, that of a host
        program in the work directory of ``main``, that program is saved instead of them.
        """
        context, session, branch = self._where()
        if pid is None:
            from waypoint.session.lifecycle.snapshot import snapshot_branch

            saved = snapshot_branch(context, session, branch, name, files_only=files_only, wait=wait)
        elif files_only or branch != MAIN:
            raise UsageError(
                "a host program is saved with all files of 'main', in whose work directory it runs",
                hint="leave out files_only, and name no other branch",
            )
        else:
            from waypoint.session.lifecycle.host_program import snapshot_with_program

            saved = snapshot_with_program(context, session, name, pid, wait=wait)
        start_background(context, session)
        return saved

    def restore(self, checkpoint: CheckpointRecord | str, *, wait: bool = True) -> CheckpointRecord:
        """Restore the branch to that checkpoint; what was not saved is lost.

        If it holds a host program and this is ``main``, the program is restored too, with the pid it had.
        """
        context, session, branch = self._where()
        restored = context.catalogue.checkpoint(session.id, checkpoint_name(checkpoint))
        if restored.kind is CheckpointKind.PROCESS and branch == MAIN:
            from waypoint.session.lifecycle.host_program import restore_with_program

            restore_with_program(context, session, restored, wait=wait)
        else:
            from waypoint.session.lifecycle.restore import restore_branch

            restore_branch(context, session, branch, restored, wait=wait)
        start_background(context, session)
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
        from waypoint.session.commands.exec import run_command

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
        from waypoint.session.commands.stream import CommandStream

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
        """Run ``command`` (shell text, or a list of words) next to the shells, which it does not touch.

        Its outputs are kept apart (``output``, ``errors``). Any number may run at once, even while the shell is busy.
        """
        from waypoint.session.commands.isolated import run_isolated

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
        """Start ``command`` in the branch's shell, and do not wait for it. The shell is busy until it ends."""
        from waypoint.session.commands.exec import start_command
        from waypoint.session.commands.jobs import Job

        return Job(self.address, start_command(self.address, command, terminal=terminal, wait=wait))

    def start_isolated(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Job:
        """Start ``command`` next to the shells, and do not wait for it."""
        from waypoint.session.commands.isolated import start_isolated
        from waypoint.session.commands.jobs import Job

        return Job(self.address, start_isolated(self.address, command, cwd=cwd, env=env, user=user))

    # -- jobs

    def jobs(self) -> list[JobStatus]:
        """The commands that the branch keeps, running and ended, oldest first."""
        from waypoint.session.commands.jobs import list_jobs

        return list_jobs(self.address)

    def job(self, number: int) -> Job:
        from waypoint.session.commands.jobs import Job

        return Job(self.address, number)

    # -- terminals

    def terminals(self) -> list[TerminalStatus]:
        from waypoint.session.terminals.open_and_type import list_terminals

        return list_terminals(self.address)

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
        """Open a terminal with a shell; what is left out is as in the session's settings.

        A terminal whose shell has ended gets a fresh one. ``attended`` is for people: a prompt, the line editor of
        bash, and no variables that tell programs that nobody is there.
        """
        from waypoint.session.terminals.open_and_type import new_terminal

        new_terminal(self.address, name, size=size, shell=shell, cwd=cwd, env=env, attended=attended)

    def close_terminal(self, name: str) -> None:
        from waypoint.session.terminals.open_and_type import close_terminal

        close_terminal(self.address, name)

    def resize(self, size: WindowSize, *, terminal: str = MAIN) -> None:
        """Give a terminal a size (rows, columns); its programs get SIGWINCH."""
        from waypoint.session.terminals.open_and_type import resize_terminal

        resize_terminal(self.address, terminal, size)

    def interrupt(self, *, terminal: str = MAIN) -> None:
        """Send SIGINT to what runs in the foreground, as the key Ctrl-C does."""
        import signal

        from waypoint.session.terminals.open_and_type import signal_terminal

        signal_terminal(self.address, terminal, signal.SIGINT)

    def send(self, *keys: str, terminal: str = MAIN, literal: bool = False) -> None:
        """Type text and named keys (``Enter``, ``C-c``, ``Up``), as ``tmux send-keys`` does."""
        from waypoint.session.terminals.open_and_type import send_keys

        send_keys(self.address, terminal, keys, literal=literal)

    def screen(self, *, terminal: str = MAIN, scrollback: int = 0) -> Screen:
        """What the terminal shows now."""
        from waypoint.session.terminals.screen import (
            read_screen,  # imports the emulator, which most callers do not need
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

    # -- files; paths in the branch are absolute; docs/files.md has the rules

    def read_file(self, path: branch_files.Path, *, wait: bool = True) -> bytes:
        """The content of a file. A link is followed, but never out of the branch."""
        from waypoint.session.branch_files import read_file

        return read_file(self._where(), path, wait=wait)

    def write_file(
        self, path: branch_files.Path, data: bytes | str, mode: int = 0o644, *, wait: bool = True
    ) -> None:
        """Write ``data`` (text as UTF-8) into a file, all at once; missing directories are made.

        A link at ``path`` is replaced, not followed.
        """
        from waypoint.session.branch_files import write_file

        write_file(self._where(), path, data, mode, wait=wait)

    def upload(
        self,
        host_path: branch_files.Path,
        path: branch_files.Path,
        *,
        links: bool = False,
        follow: bool = False,
        wait: bool = True,
        on_progress: branch_files.Progress | None = None,
    ) -> CopyResult:
        """Copy a file or directory of the host into the branch. With ``links``, links are copied as links; with
        ``follow``, if ``host_path`` itself is a link, what it points to is copied.

        If ``path`` is a directory, a directory is merged into it and a file is put into it. Anything else is replaced.
        """
        from waypoint.session.branch_files import upload

        return upload(
            self._where(), host_path, path, links=links, follow=follow, wait=wait, on_progress=on_progress
        )

    def download(
        self,
        path: branch_files.Path,
        host_path: branch_files.Path,
        *,
        links: bool = False,
        follow: bool = False,
        wait: bool = True,
        on_progress: branch_files.Progress | None = None,
    ) -> CopyResult:
        """Copy a file or directory of the branch to the host, as :meth:`upload` does the other way.

        With ``follow``, ``path`` may be a link; it is never followed out of the branch.
        """
        from waypoint.session.branch_files import download

        return download(
            self._where(), path, host_path, links=links, follow=follow, wait=wait, on_progress=on_progress
        )

    def upload_tar(
        self,
        stream: Readable,
        path: branch_files.Path,
        *,
        links: bool = False,
        wait: bool = True,
        on_progress: branch_files.Progress | None = None,
    ) -> CopyResult:
        """Unpack a tar archive, compressed or not, into a directory of the branch, which is made if missing.

        Nothing changes there until all of the archive was read and found harmless.
        """
        from waypoint.session.branch_files import upload_tar

        return upload_tar(self._where(), stream, path, links=links, wait=wait, on_progress=on_progress)

    def download_tar(
        self,
        path: branch_files.Path,
        stream: Writable,
        *,
        links: bool = False,
        wait: bool = True,
        on_progress: branch_files.Progress | None = None,
    ) -> CopyResult:
        """Write a file or directory of the branch as a tar archive; its members begin with its own name.

        Those of a path that ends in ``/.`` begin with ``.`` instead.
        """
        from waypoint.session.branch_files import download_tar

        return download_tar(self._where(), path, stream, links=links, wait=wait, on_progress=on_progress)


def _limit(output_limit: int | None, on_output: Callable[[bytes], None] | None) -> int | None:
    return COLLECTED_BYTES_MAX if output_limit is None and on_output is None else output_limit


def checkpoint_name(checkpoint: CheckpointRecord | str, what: str = "checkpoint") -> str:
    """The name of a checkpoint, given as a name or a record. Raises InvalidName, which calls it a ``what``."""
    return parse_name(what, checkpoint if isinstance(checkpoint, str) else checkpoint.name)
