"""Jobs of a branch: commands that init has started, running or ended, each with what it wrote.

They are part of every checkpoint: after a restore the same jobs are there, with the same numbers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from waypoint.errors import NotFound, UsageError, WaitTimedOut
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import checked_timeout
from waypoint.session.commands.following import Follower, Newlines, Sink
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient, shell_error
from waypoint.shell.protocol import (
    Ended,
    ErrorCode,
    JobStatus,
    ProtocolError,
    Reply,
    Request,
    encode_follow,
    encode_job,
    encode_kill,
    parse_ended,
    parse_error,
    parse_output,
)

__all__ = ["Job", "JobOutput", "list_jobs"]


_NUMBER_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class JobOutput:
    """What a job has written from the offsets asked for, or from the first byte that is still kept."""

    output: bytes
    errors: bytes
    offset: int
    error_offset: int
    from_terminal: bool

    @property
    def printed(self) -> bytes:
        """The output as exec prints it: with the line ends that the command wrote, not the terminal's."""
        if not self.from_terminal:
            return self.output
        newlines = Newlines()
        return newlines.convert(self.output) + newlines.end()


@dataclass(frozen=True, slots=True)
class Job:
    """One job, by its number."""

    address: BranchAddress
    number: int

    def __post_init__(self) -> None:
        if not 0 < self.number <= _NUMBER_MAX:  # no job ever has such a number
            raise self._unknown()

    def status(self) -> JobStatus:
        for status in list_jobs(self.address):
            if status.job == self.number:
                return status
        raise self._unknown()

    def wait(self, timeout_s: float | None = None) -> Ended:
        """Wait for its end. Raises WaitTimedOut; the job then still runs."""
        checked_timeout(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        incarnation = self.address.incarnation()
        while True:
            with self.address.reconnect(incarnation, encode_job(Request.WAIT, self.number)) as client:
                try:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    kind, payload = client.next_frame(left)
                except ConnectionLost:  # a checkpoint: ask again
                    continue
                except TimeoutError:
                    raise WaitTimedOut(
                        f"job {self.number} of {self.address.where} still runs after {timeout_s:g} s"
                    ) from None
            if kind == Reply.ENDED:
                return parse_ended(payload)
            raise self._refused(kind, payload)

    def output(self, offset: int = 0, error_offset: int = 0) -> JobOutput:
        """What it has written until now, from ``offset`` on, as far as it is kept."""
        status = self.status()
        offset = _within(offset, status.kept_from, status.length)
        error_offset = _within(error_offset, status.error_kept_from, status.error_length)
        if offset == status.length and error_offset == status.error_length:
            return JobOutput(b"", b"", offset, error_offset, bool(status.terminal))
        return self.address.ask(lambda client: self._collect(client, status, offset, error_offset))

    def follow(
        self,
        on_output: Callable[[bytes], None],
        on_errors: Callable[[bytes], None] | None = None,
        *,
        offset: int = 0,
        timeout_s: float | None = None,
    ) -> Ended:
        """Give its output to ``on_output`` as it comes, from ``offset`` on, until it has ended."""
        status = self.status()
        output = Sink(on_output, from_terminal=bool(status.terminal))
        errors = Sink(on_errors or on_output, from_terminal=False)
        offset = output.offset = _within(offset, 0, status.length)
        incarnation = self.address.incarnation()
        client = self.address.reconnect(incarnation, encode_follow(self.number, offset))
        with Follower(
            self.address, client, incarnation, self.number, output, errors, is_ours=False
        ) as follower:
            return follower.until_end(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal to its processes."""
        try:
            self.address.ask(lambda client: client.ask(encode_kill(self.number, number)))
        except InitRefused as refusal:
            raise self._explained(refusal) from refusal

    def _collect(self, client: ShellClient, status: JobStatus, offset: int, error_offset: int) -> JobOutput:
        output = Sink(None, from_terminal=False)
        errors = Sink(None, from_terminal=False)
        output.offset, errors.offset = offset, error_offset
        client.send(encode_follow(self.number, offset, error_offset))
        while output.offset < status.length or errors.offset < status.error_length:
            kind, payload = client.next_frame(None)
            if kind == Reply.OUTPUT:
                output.take(*parse_output(payload))
            elif kind == Reply.ERROR_OUTPUT:
                errors.take(*parse_output(payload))
            elif kind == Reply.ENDED:
                break
            elif kind != Reply.LOST:
                raise self._refused(kind, payload)
        return JobOutput(output.collected(), errors.collected(), offset, error_offset, bool(status.terminal))

    def _refused(self, kind: int, payload: bytes) -> Exception:
        if kind != Reply.ERROR:
            return ProtocolError(f"frame {kind:#x} about a job")
        return self._explained(InitRefused(*parse_error(payload)))

    def _explained(self, refusal: InitRefused) -> Exception:
        return (
            self._unknown()
            if refusal.reason == ErrorCode.UNKNOWN_JOB
            else shell_error(refusal, self.address.where)
        )

    def _unknown(self) -> NotFound:
        return NotFound("job", self.number, hint="waypoint jobs shows those that are kept")


def _within(offset: int, first: int, end: int) -> int:
    """The offset that was asked for, or the nearest one that exists."""
    if offset < 0:
        raise UsageError(
            f"an offset of {offset} is out of range", hint="a number of bytes to leave out: 0 or more"
        )
    return min(max(offset, first), end)


def list_jobs(address: BranchAddress) -> list[JobStatus]:
    """The jobs that init keeps, oldest first."""
    return address.ask(ShellClient.jobs)
