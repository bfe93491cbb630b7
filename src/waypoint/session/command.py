"""Run one command in the shell of a branch.

The command belongs to init, not to this connection: it may be followed to its end, or left to itself and
asked for later (:mod:`waypoint.session.jobs`).
"""

from __future__ import annotations

import time

from waypoint.errors import Busy, ShellDied, UsageError
from waypoint.log import Timeline
from waypoint.names import MAIN
from waypoint.session.following import Follower, Sink
from waypoint.session.place import Place
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient, shell_error
from waypoint.shell.protocol import (
    FROM_NOW,
    Ended,
    ErrorCode,
    How,
    Reply,
    TerminalState,
    TerminalStatus,
    encode_run,
    encode_watch,
    parse_terminal,
)

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

__all__ = [
    "CommandResult",
    "checked_text",
    "checked_timeout",
    "command_progress",
    "run_command",
    "start_command",
]

_TIMEOUT_MAX_S = 1e8  # three years: more than any clock call takes
_TEXT_BYTES_MAX = 1 << 20


class CommandResult:
    """How a command ended and all it wrote: to the terminal, or, if isolated, to its two outputs."""

    __slots__ = ("duration_ms", "error_bytes", "exit_code", "output_bytes", "phases_ms")

    def __init__(
        self,
        *,
        exit_code: int,
        output_bytes: bytes,
        error_bytes: bytes = b"",
        duration_ms: float,
        phases_ms: Mapping[str, float],
    ) -> None:
        self.exit_code = exit_code
        self.output_bytes = output_bytes
        self.error_bytes = error_bytes
        self.duration_ms = duration_ms
        self.phases_ms = phases_ms

    def __repr__(self) -> str:
        errors = f", errors={self.errors!r}" if self.error_bytes else ""
        return f"CommandResult(exit_code={self.exit_code}, output={self.output!r}{errors})"

    @property
    def output(self) -> str:
        return self.output_bytes.decode(errors="replace")

    @property
    def errors(self) -> str:
        """Standard error of an isolated command; a terminal has only one stream."""
        return self.error_bytes.decode(errors="replace")


def run_command(
    place: Place,
    text: str,
    *,
    terminal: str = MAIN,
    timeout_s: float | None = None,
    wait: bool = True,
    on_output: Callable[[bytes], None] | None = None,
    output_limit: int | None = None,
) -> CommandResult:
    """Run ``text`` in the shell of a branch, return when it has ended, and record it.

    ``timeout_s`` bounds the waiting for a shell that is busy, and then the command itself. With ``on_output``
    the output goes there as it comes and is not collected. Raises CommandTimedOut or OutputLimitExceeded after
    interrupting it, ShellDied if it ended the shell, Busy (only with ``wait=False``) if someone else's
    command runs, BranchReplaced if the branch was restored meanwhile.
    """
    progress = command_progress(
        place,
        text,
        Sink(on_output, from_terminal=True),
        terminal=terminal,
        timeout_s=timeout_s,
        wait=wait,
        output_limit=output_limit,
    )
    while True:
        try:
            next(progress)
        except StopIteration as end:
            result: CommandResult = end.value
            return result


def command_progress(
    place: Place,
    text: str,
    sink: Sink,
    *,
    terminal: str,
    timeout_s: float | None,
    wait: bool,
    output_limit: int | None,
) -> Generator[None, None, CommandResult]:
    """run_command() in steps, one for each piece of output that has reached ``sink``."""
    timeline = Timeline("exec")
    payload = checked_text(text)
    checked_timeout(timeout_s)
    with place.terminal_lock(terminal, wait=wait, timeout_s=timeout_s):
        with timeline.step("start"):
            client, incarnation, job = _start(place, terminal, payload, wait=wait, timeout_s=timeout_s)
        with (
            timeline.step("run"),
            Follower(place, client, incarnation, job, sink, limit_bytes=output_limit) as follower,
        ):
            try:
                ended = yield from follower.progress(timeout_s)
            except GeneratorExit:
                follower.give_up()
                raise
    total_ms = timeline.total_ms()
    place.catalogue.record("exec", place.session_id, place.branch, total_ms, timeline.phases_ms)
    if ended.how != How.STATUS:
        raise _shell_died(ended, place.where, sink.collected())
    return CommandResult(
        exit_code=ended.status,
        output_bytes=sink.collected(),
        duration_ms=total_ms,
        phases_ms=timeline.phases_ms,
    )


def start_command(
    place: Place, text: str, *, terminal: str = MAIN, timeout_s: float | None = None, wait: bool = True
) -> int:
    """Start ``text`` in the shell and leave it to itself; return the number of its job."""
    payload = checked_text(text)
    with place.terminal_lock(terminal, wait=wait, timeout_s=timeout_s):
        client, _, job = _start(place, terminal, payload, wait=wait, timeout_s=timeout_s, follow=False)
        client.close()
    return job


def _start(
    place: Place, terminal: str, payload: bytes, *, wait: bool, timeout_s: float | None, follow: bool = True
) -> tuple[ShellClient, str, int]:
    """Connect and start the command. The gate is held until init has said that it started.

    So a checkpoint cannot cut the connection in between, and it is never in doubt whether it runs.
    """
    while True:
        with place.gate():
            incarnation = place.incarnation()
            client = place.connect(incarnation)
            try:
                return client, incarnation, client.start(encode_run(terminal, payload, follow=follow))
            except InitRefused as refusal:
                if refusal.reason != ErrorCode.BUSY:
                    client.close()
                    raise shell_error(refusal, place.where, terminal) from refusal
            except BaseException:
                client.close()
                raise
        # A command that was left to itself or whose caller died, or what somebody typed.
        with client:
            _wait_for_prompt(place, client, terminal, wait=wait, timeout_s=timeout_s)


def _wait_for_prompt(
    place: Place, client: ShellClient, terminal: str, *, wait: bool, timeout_s: float | None
) -> None:
    """Wait until the shell may be free; a checkpoint in between only makes us look again."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        client.send(encode_watch(terminal, FROM_NOW))
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            kind, payload = client.next_frame(left)
            if kind != Reply.TERMINAL:
                continue
            status = parse_terminal(payload)
            if status.state not in (TerminalState.RUNNING, TerminalState.TYPED):
                return
            if not wait:
                raise _busy(place, status)
    except ConnectionLost:
        return
    except TimeoutError:
        raise _busy(place, status) from None


def _busy(place: Place, status: TerminalStatus) -> Busy:
    doing = f"job {status.job}" if status.job else "what was typed into it"
    return Busy(
        f"{place.where} is busy with {doing}",
        hint=f"wait for it (waypoint wait-for --exit), or interrupt it (waypoint interrupt): terminal {status.name}",
    )


def checked_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise UsageError(
            f"a timeout of {timeout_s} s", hint=f"more than 0, at most {_TIMEOUT_MAX_S:.0f} seconds"
        )


def checked_text(text: str) -> bytes:
    try:
        payload = text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the command is not text: {error.reason}", hint="encode it as UTF-8") from error
    if len(payload) > _TEXT_BYTES_MAX:
        what = f"a command of {len(payload)} bytes; at most {_TEXT_BYTES_MAX} can be given"
        raise UsageError(what, hint="write it into a file of the branch and run that")
    return payload


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
