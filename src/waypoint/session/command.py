"""Run one command in the shell of a branch and see it through to its end.

The command belongs to init, not to this connection. When the branch is checkpointed meanwhile, init drops
the connection; we wait for the gate, connect again and go on from the byte we had. When the branch was
*replaced* meanwhile (restored), the command is gone with the old state, and that is an error.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import NamedTuple

from waypoint.errors import BranchReplaced, Busy, CommandTimedOut, ShellDied
from waypoint.log import Timeline
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient, shell_error
from waypoint.shell.protocol import Ended, ErrorCode, How, ProtocolError, Reply, parse_ended, parse_output

__all__ = ["CommandResult", "Connector", "Newlines", "run_command"]

Connector = Callable[[], AbstractContextManager[tuple[ShellClient, str]]]
"""Connects with the gate held for the block; yields the connection and the branch's incarnation."""

# Given to a command that ran out of time, each followed by a while to end by itself.
_TIMEOUT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_TIMEOUT_GRACE_S = 2.0


class CommandResult(NamedTuple):
    """How a command ended and all it wrote to the terminal."""

    exit_code: int
    output_bytes: bytes
    duration_ms: float
    phases_ms: Mapping[str, float] = MappingProxyType({})

    @property
    def output(self) -> str:
        return self.output_bytes.decode(errors="replace")


def run_command(
    connect: Connector,
    terminal: str,
    text: str,
    *,
    where: str,
    timeout_s: float | None,
    wait: bool,
    on_output: Callable[[bytes], None] | None,
) -> CommandResult:
    """Run ``text`` in the shell and return when it has ended.

    Raises CommandTimedOut after interrupting it, ShellDied if it ended the shell, Busy (only with
    ``wait=False``) if a command of a vanished caller still runs, BranchReplaced as above.
    """
    timeline = Timeline("exec")
    payload = text.encode(errors="surrogateescape")
    with timeline.step("start"):
        client, incarnation, job = _start(connect, terminal, payload, where=where, wait=wait)
    follower = _Follower(connect, client, incarnation, terminal, job, where=where, on_output=on_output)
    try:
        with timeline.step("run"):
            ended = follower.until_end(timeout_s)
    finally:
        follower.close()
    output = follower.output()
    if ended.how is not How.STATUS:
        raise _shell_died(ended, where, output)
    if follower.timed_out and timeout_s is not None:
        raise CommandTimedOut(timeout_s, output)
    return CommandResult(
        exit_code=ended.status,
        output_bytes=output,
        duration_ms=timeline.total_ms(),
        phases_ms=timeline.phases_ms,
    )


def _start(
    connect: Connector, terminal: str, payload: bytes, *, where: str, wait: bool
) -> tuple[ShellClient, str, int]:
    """Connect and start the command. The gate is held until init has said that it started.

    So a checkpoint cannot cut the connection in between, and it is never in doubt whether it runs.
    """
    while True:
        with connect() as (client, incarnation):
            try:
                return client, incarnation, client.run(terminal, payload)
            except InitRefused as refusal:
                running = _job_in_the_way(client, terminal) if refusal.code is ErrorCode.BUSY else 0
                if not running:
                    client.close()
                    raise shell_error(refusal, where) from refusal
            except BaseException:
                client.close()
                raise
        # Its caller died, but the command goes on: the shell is free when it has ended.
        if not wait:
            client.close()
            raise Busy(f"{where} is busy with job {running}", hint="leave out --no-wait to wait for it")
        waiting = _Follower(connect, client, incarnation, terminal, running, where=where, on_output=_discard)
        try:
            client.follow(running, 0)
            waiting.until_end(None)
        finally:
            waiting.close()


def _job_in_the_way(client: ShellClient, terminal: str) -> int:
    return next((status.job for status in client.terminals() if status.name == terminal), 0)


class _Follower:
    """Follows one job through reconnections."""

    def __init__(
        self,
        connect: Connector,
        client: ShellClient,
        incarnation: str,
        terminal: str,
        job: int,
        *,
        where: str,
        on_output: Callable[[bytes], None] | None,
    ) -> None:
        self.timed_out = False
        self._connect = connect
        self._client = client
        self._incarnation = incarnation
        self._terminal = terminal
        self._job = job
        self._where = where
        self._offset = 0
        self._newlines = Newlines()
        self._chunks: list[bytes] = []
        self._on_output = self._chunks.append if on_output is None else on_output

    def output(self) -> bytes:
        return b"".join(self._chunks)

    def close(self) -> None:
        self._client.close()

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
            except TimeoutError:
                self.timed_out = True
                if not signals:  # a loop of the shell itself that ignores SIGINT
                    raise CommandTimedOut(timeout_s or 0.0, self.output(), resists=True) from None
                self._client.signal(self._terminal, signals.pop(0))
                deadline = time.monotonic() + _TIMEOUT_GRACE_S
                continue
            if kind is Reply.ENDED:
                self._emit(self._newlines.end())
                return parse_ended(payload)
            if kind is Reply.OUTPUT:
                offset, data = parse_output(payload)
                self._offset = offset + len(data)
                self._emit(self._newlines.convert(data))
            elif kind is Reply.LOST:
                self._emit(b"\n[output lost: nobody read it in time]\n")
            elif kind not in (Reply.OK, Reply.ERROR):  # answers to our signals
                raise ProtocolError(f"{kind.name} while following a job")

    def _emit(self, data: bytes) -> None:
        if data:
            self._on_output(data)

    def _reconnect(self) -> None:
        self._client.close()
        with self._connect() as (client, incarnation):
            self._client = client
            if incarnation != self._incarnation:
                raise BranchReplaced(
                    f"{self._where} was restored while the command ran",
                    hint="run it again if it is still wanted",
                )
            client.follow(self._job, self._offset)


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
    if ended.how is How.SHELL_EXITED:
        how = f"exited with status {ended.status}"
    elif ended.how is How.SHELL_KILLED:
        how = f"was killed by {signal.Signals(ended.status).name}"
    else:
        how = "was closed with its terminal"
    return ShellDied(f"the shell of {where} {how}", output=output)
