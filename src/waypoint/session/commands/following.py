"""Follow one job to its end, through checkpoints of its branch, a time limit and a limit of output."""

from __future__ import annotations

import time

from waypoint.errors import Busy, CommandTimedOut, OutputLimitExceeded, WaypointError
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient, shell_error
from waypoint.shell.protocol import (
    Ended,
    How,
    ProtocolError,
    Reply,
    encode_follow,
    encode_kill,
    parse_ended,
    parse_error,
    parse_output,
)

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from waypoint.session.commands.branch_address import BranchAddress

__all__ = ["Follower", "Newlines", "Sink"]

INTERRUPT, TERMINATE, KILL = 2, 15, 9
GRACE_S = 2.0  # for a program to end in good order

# A signal on a terminal reaches what is in its foreground at that moment. In `while :; do /bin/true; done` that is
# often a program which is just ending or starting, and the shell continues the loop: 15 to 45 of 100 interrupts
# were lost this way, depending on the shell. The grace of each signal comes first, for programs that take a second
# interrupt as "at once".
REPEATS = 10
REPEAT_S = 0.1
LOST = b"\n[output lost: nobody read it in time]\n"


class OutputLimit:
    """How much output a job may write, in all of its sinks together."""

    __slots__ = ("_left", "is_exceeded", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.is_exceeded = False
        self._left = limit_bytes

    def admit(self, data: bytes) -> bytes:
        """The part of ``data`` that is within the limit; it is counted."""
        fits = data[: self._left]
        self._left -= len(fits)
        self.is_exceeded |= len(fits) < len(data)
        return fits


class Sink:
    """Where the output of a job goes: collected, or to a function as it comes. No more of it than the limit allows."""

    __slots__ = ("_chunks", "_give", "_newlines", "from_terminal", "limit", "offset", "reader_gone")

    def __init__(self, on_output: Callable[[bytes], None] | None, *, from_terminal: bool) -> None:
        self.from_terminal = from_terminal
        self.offset = 0
        self.reader_gone: BrokenPipeError | None = None
        self.limit: OutputLimit | None = None
        self._chunks: list[bytes] = []
        self._give = self._chunks.append if on_output is None else on_output
        self._newlines = Newlines() if from_terminal else None

    def take(self, offset: int, data: bytes) -> None:
        self.offset = offset + len(data)
        self.emit(data if self._newlines is None else self._newlines.convert(data))

    def end(self) -> None:
        if self._newlines is not None:
            self.emit(self._newlines.end())

    def emit(self, data: bytes) -> None:
        if self.limit is not None:
            data = self.limit.admit(data)
        if not data:
            return
        try:
            self._give(data)
        except BrokenPipeError as error:
            # Nobody reads any more (`… | head`). On a pipe of its own the command would be ended by that.
            self.reader_gone = error
            self._give = _discard

    def collected(self) -> bytes:
        return b"".join(self._chunks)


class Follower:
    """Follows one job through reconnections; a context manager, which closes the connection."""

    def __init__(
        self,
        address: BranchAddress,
        client: ShellClient,
        incarnation: str,
        job: int,
        output: Sink,
        errors: Sink | None = None,
        *,
        is_ours: bool = True,
        limit_bytes: int | None = None,
    ) -> None:
        self.job = job
        self.output = output
        self.errors = errors
        self._is_ours = is_ours
        self._may_interrupt = is_ours
        if limit_bytes is not None:
            limit = OutputLimit(limit_bytes)
            for sink in self._sinks():
                sink.limit = limit
        self._ending: CommandTimedOut | OutputLimitExceeded | None = None
        self._answers_due = 0
        self._address = address
        self._client = client
        self._incarnation = incarnation

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def until_end(self, timeout_s: float | None) -> Ended:
        """Take the output until the job has ended.

        Raises CommandTimedOut or OutputLimitExceeded when the job has been ended because of that, or resists it.
        """
        progress = self.progress(timeout_s)
        while True:
            try:
                next(progress)
            except StopIteration as end:
                ended: Ended = end.value
                return ended

    def progress(self, timeout_s: float | None) -> Generator[None, None, Ended]:
        """until_end() in steps, one for each piece of output."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        signals = _escalation(on_terminal=self.output.from_terminal)
        while True:
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                kind, payload = self._client.next_frame(left)
            except ConnectionLost:
                self._reconnect()
                continue
            except KeyboardInterrupt:
                self._pass_on_interrupt()
                continue
            except TimeoutError:
                if not self._is_ours:
                    raise self._reader_gone() or self._still_busy() from None
                if self._ending is None and self._reader_gone() is None:
                    self._ending = CommandTimedOut(timeout_s or 0.0)
                number, pause_s = next(signals, (0, 0.0))
                if not number:  # a loop of the shell itself that ignores SIGINT
                    raise self._unended_failure() from None
                self._kill(number)
                deadline = time.monotonic() + pause_s
                continue
            if kind == Reply.ENDED:
                return self._ended(parse_ended(payload))
            try:
                must_end = self._take(kind, payload)
            except KeyboardInterrupt:
                self._pass_on_interrupt()
            else:
                deadline = time.monotonic() if must_end else deadline
            yield

    def _pass_on_interrupt(self) -> None:
        """The first is meant for the command, as at any terminal; the second for us."""
        if not self._may_interrupt:
            raise KeyboardInterrupt
        self._may_interrupt = False
        self._kill(INTERRUPT)

    def give_up(self) -> None:
        """End the job: nobody wants its output any more."""
        try:
            self.until_end(0.0)
        except (CommandTimedOut, OutputLimitExceeded):
            return

    def abandon(self) -> None:
        """Kill the job without waiting for its end; if it cannot be reached, it has ended already."""
        try:
            self._kill(KILL)
        except (WaypointError, OSError):
            return

    def _ended(self, ended: Ended) -> Ended:
        for sink in self._sinks():
            sink.end()
        self._check_limit()
        failure = self._reader_gone() or self._with_output(self._ending)
        # That the shell has ended too (`exec sleep 1000` was the job) matters more to the caller than why.
        shell_lives = ended.how in (How.STATUS, How.KILLED)
        if failure is not None and (shell_lives or self._reader_gone() is not None):
            raise failure
        return ended

    def _take(self, kind: int, payload: bytes) -> bool:
        """Deal with a frame on the way; whether the job has to be ended now."""
        was_ending = self._ending is not None or self._reader_gone() is not None
        if kind == Reply.OUTPUT:
            self.output.take(*parse_output(payload))
        elif kind == Reply.ERROR_OUTPUT and self.errors is not None:
            self.errors.take(*parse_output(payload))
        elif kind == Reply.LOST:
            (self.errors if payload[0] and self.errors is not None else self.output).emit(LOST)
        elif kind in (Reply.OK, Reply.ERROR) and self._answers_due:
            self._answers_due -= 1
        elif kind == Reply.ERROR:
            raise shell_error(InitRefused(*parse_error(payload)), self._address.where)
        else:
            raise ProtocolError(f"frame {kind:#x} while following a job")
        if was_ending:
            return False
        self._check_limit()
        return self._ending is not None or self._reader_gone() is not None

    def _check_limit(self) -> None:
        limit = self.output.limit
        if limit is not None and limit.is_exceeded and self._ending is None:
            self._ending = OutputLimitExceeded(limit.limit_bytes)

    def _sinks(self) -> tuple[Sink, ...]:
        return (self.output,) if self.errors is None else (self.output, self.errors)

    def _reader_gone(self) -> BrokenPipeError | None:
        return next((sink.reader_gone for sink in self._sinks() if sink.reader_gone is not None), None)

    def _with_output(
        self, ending: CommandTimedOut | OutputLimitExceeded | None
    ) -> CommandTimedOut | OutputLimitExceeded | None:
        if ending is not None:
            ending.output = self.output.collected()
        return ending

    def _unended_failure(self) -> BaseException:
        failure = self._reader_gone() or self._with_output(self._ending) or CommandTimedOut(0.0)
        if isinstance(failure, CommandTimedOut):
            return CommandTimedOut(failure.timeout_s, failure.output, resists=True)
        return failure

    def _still_busy(self) -> Busy:
        what = f"{self._address.where} is still busy with job {self.job}"
        return Busy(what, hint=f"waypoint wait waits for it, waypoint interrupt ends it: job {self.job}")

    def _kill(self, number: int) -> None:
        frame = encode_kill(self.job, number)
        while True:
            try:
                self._client.send(frame)
            except ConnectionLost:
                self._reconnect()
            else:
                self._answers_due += 1
                return

    def _reconnect(self) -> None:
        self._client.close()
        self._answers_due = 0
        follow = encode_follow(self.job, self.output.offset, self.errors.offset if self.errors else 0)
        self._client = self._address.reconnect(self._incarnation, follow)


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


def _escalation(*, on_terminal: bool) -> Iterator[tuple[int, float]]:
    """The signals that end a job, in order, each with how long to wait for the end after it."""
    for number in (INTERRUPT, TERMINATE, KILL):
        yield number, GRACE_S
        if on_terminal:
            yield from [(INTERRUPT, REPEAT_S)] * REPEATS


def _discard(_data: bytes) -> None:
    pass
