"""Run one command in the shell of a branch.

The command belongs to init, not to this connection: it may be followed to its end, or left running and
asked for later (:mod:`waypoint.session.commands.jobs`).
"""

from __future__ import annotations

import errno
import os
import time

from waypoint.errors import Busy, CommandTooLong, ShellDied, ShellError, UsageError
from waypoint.log import Timeline
from waypoint.names import MAIN
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.following import Follower, Sink
from waypoint.shell.client import (
    ANSWER_TIMEOUT_S,
    ConnectionLost,
    InitRefused,
    ShellClient,
    shell_error,
    silent,
)
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

    from waypoint.errors import LimitReached
    from waypoint.session.commands.limits_reached import LimitWatch

__all__ = [
    "CommandResult",
    "NoLimits",
    "checked_text",
    "checked_timeout",
    "command_progress",
    "run_command",
    "start_command",
    "watch_limits",
]

_TIMEOUT_MAX_S = 1e8  # three years: more than any clock call takes
_TEXT_BYTES_MAX = 1 << 20
_QUOTA_EXCEEDED = os.strerror(errno.EDQUOT)


class NoLimits:
    """Stands for the limits of a branch that has none."""

    __slots__ = ()

    def reached(self) -> tuple[LimitReached, ...]:
        return ()


class CommandResult:
    """How a command ended and all it wrote: to the terminal, or, if isolated, to its two outputs.

    ``limits_reached`` are the limits of the branch that it, or another process meanwhile, ran into.
    """

    __slots__ = ("duration_ms", "error_bytes", "exit_code", "limits_reached", "output_bytes", "phases_ms")

    def __init__(
        self,
        *,
        exit_code: int,
        output_bytes: bytes,
        error_bytes: bytes = b"",
        duration_ms: float,
        phases_ms: Mapping[str, float],
        limits_reached: tuple[LimitReached, ...] = (),
    ) -> None:
        self.exit_code = exit_code
        self.output_bytes = output_bytes
        self.error_bytes = error_bytes
        self.duration_ms = duration_ms
        self.phases_ms = phases_ms
        self.limits_reached = limits_reached

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
    address: BranchAddress,
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
        address,
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
    address: BranchAddress,
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
    with address.terminal_lock(terminal, wait=wait, timeout_s=timeout_s):
        with timeline.step("start"):
            client, incarnation, job, watch = _start(
                address, terminal, payload, wait=wait, timeout_s=timeout_s
            )
        with (
            timeline.step("run"),
            Follower(address, client, incarnation, job, sink, limit_bytes=output_limit) as follower,
        ):
            try:
                ended = yield from follower.progress(timeout_s)
            except GeneratorExit:
                follower.give_up()
                raise
            except ShellError as error:
                error.because_of(watch.reached())
                raise
    total_ms = timeline.total_ms()
    address.record("exec", total_ms, timeline.phases_ms)
    if ended.how != How.STATUS:
        raise _shell_died(ended, address.where, sink.collected()).because_of(watch.reached())
    return CommandResult(
        exit_code=ended.status,
        output_bytes=sink.collected(),
        duration_ms=total_ms,
        phases_ms=timeline.phases_ms,
        limits_reached=watch.reached(),
    )


def start_command(
    address: BranchAddress,
    text: str,
    *,
    terminal: str = MAIN,
    timeout_s: float | None = None,
    wait: bool = True,
) -> int:
    """Start ``text`` in the shell and do not wait for it; return the number of its job."""
    payload = checked_text(text)
    with address.terminal_lock(terminal, wait=wait, timeout_s=timeout_s):
        client, _, job, _ = _start(address, terminal, payload, wait=wait, timeout_s=timeout_s, follow=False)
        client.close()
    return job


def _start(
    address: BranchAddress,
    terminal: str,
    payload: bytes,
    *,
    wait: bool,
    timeout_s: float | None,
    follow: bool = True,
) -> tuple[ShellClient, str, int, LimitWatch | NoLimits]:
    """Connect and start the command. The gate is held until init has said that it started.

    So a checkpoint cannot cut the connection in between, and it is never in doubt whether it runs.
    """
    frame = encode_run(terminal, payload, follow=follow)
    while True:
        with address.gate():
            incarnation = address.incarnation()
            watch = watch_limits(address, incarnation)
            client = address.connect(incarnation)
            try:
                return client, incarnation, _hand_over(address, client, incarnation, frame), watch
            except InitRefused as refusal:
                if refusal.reason != ErrorCode.BUSY:
                    client.close()
                    raise shell_error(refusal, address.where, terminal) from refusal
            except BaseException:
                client.close()
                raise
        # The shell is busy with a command that nobody waits for or whose caller died, or with what somebody typed.
        with client:
            _wait_for_prompt(address, client, terminal, wait=wait, timeout_s=timeout_s)


def watch_limits(address: BranchAddress, incarnation: str) -> LimitWatch | NoLimits:
    """Reports afterwards which limits of the branch were reached from now on."""
    if not address.has_limits(incarnation):
        return NoLimits()
    from waypoint.session.commands.limits_reached import LimitWatch  # seldom needed on the light path

    return LimitWatch(address, incarnation)


def _hand_over(address: BranchAddress, client: ShellClient, incarnation: str, frame: bytes) -> int:
    """Give init a command to run, also if the branch has reached its disk limit and cannot hold the text's file."""
    try:
        return client.start(frame)
    except InitRefused as refusal:
        if _QUOTA_EXCEEDED not in str(refusal):
            raise
    from waypoint.session.commands.disk_space import start_with_reserve

    return start_with_reserve(address, incarnation, len(frame), lambda: client.start(frame))


def _wait_for_prompt(
    address: BranchAddress, client: ShellClient, terminal: str, *, wait: bool, timeout_s: float | None
) -> None:
    """Wait until the shell may be free; a checkpoint in between only makes us look again."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    status: TerminalStatus | None = None
    try:
        client.send(encode_watch(terminal, FROM_NOW))
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            # However little time is left: init reports at once what is in the way, and the error is to name it.
            kind, payload = client.next_frame(ANSWER_TIMEOUT_S if status is None else left)
            if kind != Reply.TERMINAL:
                continue
            status = parse_terminal(payload)
            if status.state not in (TerminalState.RUNNING, TerminalState.TYPED):
                return
            if not wait:
                raise _busy(address, status)
    except ConnectionLost:
        return
    except TimeoutError as error:
        raise (silent() if status is None else _busy(address, status)) from error


def _busy(address: BranchAddress, status: TerminalStatus) -> Busy:
    doing = f"job {status.job}" if status.job else "what was typed into it"
    return Busy(
        f"{address.where} is busy with {doing}",
        hint=f"wait for it (waypoint wait-for --exit), or interrupt it (waypoint interrupt): terminal {status.name}",
    )


def checked_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise UsageError(
            f"a timeout of {timeout_s} s is out of range",
            hint=f"more than 0, at most {_TIMEOUT_MAX_S:.0f} seconds",
        )


def checked_text(text: str) -> bytes:
    try:
        payload = text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the command is not text: {error.reason}", hint="encode it as UTF-8") from error
    if len(payload) > _TEXT_BYTES_MAX:
        what = f"the command has {len(payload)} bytes; at most {_TEXT_BYTES_MAX} can be given"
        raise CommandTooLong(what, hint="write it into a file of the branch and run that")
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
