"""Run one command in the shell of a branch and see it through to its end.

The command belongs to init, not to this connection. When the branch is checkpointed meanwhile, init drops
the connection; we wait for the gate, connect again and go on from the byte we had. When the branch was
*replaced* meanwhile (restored), the command is gone with the old state, and that is an error.
"""

from __future__ import annotations

import time

from waypoint.errors import BranchReplaced, Broken, Busy, CommandTimedOut, NotFound, ShellDied, UsageError
from waypoint.log import Timeline
from waypoint.names import MAIN
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient, shell_error
from waypoint.shell.protocol import (
    Ended,
    ErrorCode,
    How,
    ProtocolError,
    Reply,
    parse_ended,
    parse_error,
    parse_output,
)
from waypoint.store.live import LiveCatalogue, lock_path, root_path
from waypoint.store.lock import gate_lock, locked, terminal_lock

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CommandResult", "Newlines", "run_command"]

# Given to a command that ran out of time, each followed by a while to end by itself: SIGINT, SIGTERM, SIGKILL.
_TIMEOUT_SIGNALS = (2, 15, 9)
_TIMEOUT_GRACE_S = 2.0
_TIMEOUT_MAX_S = 1e8  # three years: more than any clock call takes
_TEXT_BYTES_MAX = 1 << 20


class CommandResult:
    """How a command ended and all it wrote to the terminal."""

    __slots__ = ("duration_ms", "exit_code", "output_bytes", "phases_ms")

    def __init__(
        self, *, exit_code: int, output_bytes: bytes, duration_ms: float, phases_ms: Mapping[str, float]
    ) -> None:
        self.exit_code = exit_code
        self.output_bytes = output_bytes
        self.duration_ms = duration_ms
        self.phases_ms = phases_ms

    def __repr__(self) -> str:
        return f"CommandResult(exit_code={self.exit_code}, output={self.output!r})"

    @property
    def output(self) -> str:
        return self.output_bytes.decode(errors="replace")


class _Place:
    """A branch to run commands in: how to reach it, by name, whatever becomes of it meanwhile."""

    def __init__(self, state_dir: str, catalogue: LiveCatalogue, session_id: str, branch: str) -> None:
        self.state_dir = state_dir
        self.catalogue = catalogue
        self.session_id = session_id
        self.branch = branch
        self.where = f"branch {branch!r} of session {session_id}"

    def terminal_lock(self, terminal: str, *, wait: bool, timeout_s: float | None) -> locked:
        path = lock_path(self.state_dir, terminal_lock(self.session_id, self.branch, terminal))
        hint = "leave out --no-wait to wait for it" if timeout_s is None else "another command runs in it"
        return locked(path, what=self.where, wait=wait, timeout_s=timeout_s, hint=hint)

    def gate(self) -> locked:
        """To be held while connecting, so that no checkpoint starts meanwhile."""
        name = gate_lock(self.session_id, self.branch)
        return locked(lock_path(self.state_dir, name), what=self.where, shared=True)

    def incarnation(self) -> str:
        return self.catalogue.incarnation(self.session_id, self.branch)

    def connect(self, incarnation: str) -> ShellClient:
        try:
            return ShellClient(root_path(self.state_dir, incarnation))
        except Broken as error:
            raise Broken(f"{self.where}: {error}", hint=error.hint) from error


def run_command(
    state_dir: str,
    catalogue: LiveCatalogue,
    session_id: str,
    branch: str,
    text: str,
    *,
    timeout_s: float | None = None,
    wait: bool = True,
    on_output: Callable[[bytes], None] | None = None,
) -> CommandResult:
    """Run ``text`` in the shell of a branch, return when it has ended, and record it.

    ``timeout_s`` bounds the waiting for a shell that is busy, and then the command itself. With ``on_output``
    the output goes there as it comes and is not collected. Raises CommandTimedOut after
    interrupting it, ShellDied if it ended the shell, Busy (only with ``wait=False``) if someone else's
    command runs, BranchReplaced as above.
    """
    timeline = Timeline("exec")
    payload = _checked(text, timeout_s)
    place = _Place(state_dir, catalogue, session_id, branch)
    place.incarnation()  # a lock file is made only for what exists
    with place.terminal_lock(MAIN, wait=wait, timeout_s=timeout_s):
        with timeline.step("start"):
            follower = _start(place, MAIN, payload, wait=wait, timeout_s=timeout_s, on_output=on_output)
        with timeline.step("run"), follower:
            ended = follower.until_end(timeout_s)
    total_ms = timeline.total_ms()
    catalogue.record("exec", session_id, branch, total_ms, timeline.phases_ms)
    if ended.how != How.STATUS:
        raise _shell_died(ended, place.where, follower.output())
    if follower.timed_out:
        raise CommandTimedOut(timeout_s or 0.0, follower.output())
    return CommandResult(
        exit_code=ended.status,
        output_bytes=follower.output(),
        duration_ms=total_ms,
        phases_ms=timeline.phases_ms,
    )


def _start(
    place: _Place,
    terminal: str,
    payload: bytes,
    *,
    wait: bool,
    timeout_s: float | None,
    on_output: Callable[[bytes], None] | None,
) -> _Follower:
    """Connect and start the command. The gate is held until init has said that it started.

    So a checkpoint cannot cut the connection in between, and it is never in doubt whether it runs.
    """
    while True:
        with place.gate():
            incarnation = place.incarnation()
            client = place.connect(incarnation)
            try:
                try:
                    job = client.run(terminal, payload)
                except InitRefused as refusal:
                    running = _job_in_the_way(client, terminal) if refusal.reason == ErrorCode.BUSY else 0
                    if not running:
                        raise shell_error(refusal, place.where) from refusal
                else:
                    return _Follower(place, client, incarnation, terminal, job, on_output)
            except BaseException:
                client.close()
                raise
        # Its caller died, but the command goes on: the shell is free when it has ended.
        with _Follower(place, client, incarnation, terminal, running, _discard, is_ours=False) as waiting:
            if not wait:
                raise Busy(
                    f"{place.where} is busy with job {running}", hint="leave out --no-wait to wait for it"
                )
            client.follow(running, 0)
            waiting.until_end(timeout_s)


def _job_in_the_way(client: ShellClient, terminal: str) -> int:
    return next((status.job for status in client.terminals() if status.name == terminal), 0)


class _Follower:
    """Follows one job through reconnections; a context manager, which closes the connection."""

    def __init__(
        self,
        place: _Place,
        client: ShellClient,
        incarnation: str,
        terminal: str,
        job: int,
        on_output: Callable[[bytes], None] | None,
        *,
        is_ours: bool = True,
    ) -> None:
        self.timed_out = False
        self._is_ours = is_ours
        self._may_interrupt = is_ours
        self._reader_gone: BrokenPipeError | None = None
        self._answers_due = 0
        self._place = place
        self._client = client
        self._incarnation = incarnation
        self._terminal = terminal
        self._job = job
        self._offset = 0
        self._newlines = Newlines()
        self._chunks: list[bytes] = []
        self._on_output = self._chunks.append if on_output is None else on_output

    def __enter__(self) -> _Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def output(self) -> bytes:
        return b"".join(self._chunks)

    def until_end(self, timeout_s: float | None) -> Ended:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        signals = list(_TIMEOUT_SIGNALS)
        while True:
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                kind, payload = self._client.next_frame(left)
            except ConnectionLost:
                self._reconnect()
                continue
            except KeyboardInterrupt:
                # The first is meant for the command, as at any terminal; the second for us.
                if not self._may_interrupt:
                    raise
                self._may_interrupt = False
                self._signal(_TIMEOUT_SIGNALS[0])
                continue
            except TimeoutError:
                if not self._is_ours:
                    what = f"{self._place.where} is still busy with job {self._job}"
                    raise Busy(
                        what, hint="its caller is gone; restore a checkpoint to be rid of it"
                    ) from None
                self.timed_out = timeout_s is not None
                if not signals:  # a loop of the shell itself that ignores SIGINT
                    raise self._reader_gone or CommandTimedOut(
                        timeout_s or 0.0, self.output(), resists=True
                    ) from None
                self._signal(signals.pop(0))
                deadline = time.monotonic() + _TIMEOUT_GRACE_S
                continue
            if kind == Reply.ENDED:
                self._emit(self._newlines.end())
                if self._reader_gone is not None:
                    raise self._reader_gone
                return parse_ended(payload)
            if self._take(kind, payload) is not None:
                deadline = time.monotonic()  # ends the command as a timeout does

    def _take(self, kind: int, payload: bytes) -> BrokenPipeError | None:
        """Deal with a frame on the way; what comes back is that our reader has just gone."""
        had_reader = self._reader_gone is None
        if kind == Reply.OUTPUT:
            offset, data = parse_output(payload)
            self._offset = offset + len(data)
            self._emit(self._newlines.convert(data))
        elif kind == Reply.LOST:
            self._emit(b"\n[output lost: nobody read it in time]\n")
        elif kind in (Reply.OK, Reply.ERROR) and self._answers_due:
            self._answers_due -= 1
        elif kind == Reply.ERROR:
            raise shell_error(InitRefused(*parse_error(payload)), self._place.where)
        else:
            raise ProtocolError(f"frame {kind:#x} while following a job")
        return self._reader_gone if had_reader else None

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._on_output(data)
        except BrokenPipeError as error:
            # Nobody reads any more (`… | head`). On a pipe of its own the command would be ended by that.
            self._reader_gone = error
            self._on_output = _discard

    def _signal(self, number: int) -> None:
        try:
            self._client.signal(self._terminal, number)
        except ConnectionLost:
            self._reconnect()
            self._client.signal(self._terminal, number)
        self._answers_due += 1

    def _reconnect(self) -> None:
        self._client.close()
        self._answers_due = 0
        try:
            self._place.incarnation()  # the gate's file is made only for what exists
            with self._place.gate():
                incarnation = self._place.incarnation()
                if incarnation == self._incarnation:
                    self._client = self._place.connect(incarnation)
                    self._client.follow(self._job, self._offset)
                    return
        except NotFound as error:
            raise self._replaced("removed") from error
        raise self._replaced("restored")

    def _replaced(self, how: str) -> BranchReplaced:
        what = f"{self._place.where} was {how} while the command ran"
        return BranchReplaced(what, hint="run it again if it is still wanted")


def _checked(text: str, timeout_s: float | None) -> bytes:
    if timeout_s is not None and not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise UsageError(
            f"a timeout of {timeout_s} s", hint=f"more than 0, at most {_TIMEOUT_MAX_S:.0f} seconds"
        )
    try:
        payload = text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the command is not text: {error.reason}", hint="encode it as UTF-8") from error
    if len(payload) > _TEXT_BYTES_MAX:
        what = f"a command of {len(payload)} bytes; at most {_TEXT_BYTES_MAX} can be given"
        raise UsageError(what, hint="write it into a file of the branch and run that")
    return payload


class Newlines:
    """Undoes what the terminal did to the output: each line feed became carriage return, line feed."""

    def __init__(self) -> None:
        self._held = b""

    def convert(self, data: bytes) -> bytes:
        data = self._held + data
        self._held = b"\r" if data.endswith(b"\r") else b""
        return data[: len(data) - len(self._held)].replace(b"\r\n", b"\n")

    def end(self) -> bytes:
        return self._held


def _discard(_data: bytes) -> None:
    pass


def _shell_died(ended: Ended, where: str, output: bytes) -> ShellDied:
    if ended.how == How.SHELL_EXITED:
        how = f"exited with status {ended.status}"
    elif ended.how == How.SHELL_KILLED:
        how = f"was killed by {_signal_name(ended.status)}"
    else:
        how = "was closed with its terminal"
    return ShellDied(f"the shell of {where} {how}", output=output)


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
