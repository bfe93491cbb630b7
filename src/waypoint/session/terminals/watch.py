"""Watch a terminal of a branch: keep what it shows up to date in an emulator of our own.

Watching continues through checkpoints of the branch. When the branch is restored, the view becomes the restored
terminal's, from the output that init had kept in the checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from waypoint.session.commands.branch_address import BranchAddress
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient, shell_error
from waypoint.shell.emulator import Emulator
from waypoint.shell.protocol import (
    ProtocolError,
    Reply,
    TerminalStatus,
    encode_watch,
    parse_error,
    parse_output,
    parse_resized,
    parse_terminal,
)
from waypoint.shell.screen import Screen

__all__ = [
    "Answered",
    "Changed",
    "Ended",
    "Event",
    "Printed",
    "Reconnected",
    "Redrawn",
    "Replaced",
    "TerminalView",
]


@dataclass(frozen=True, slots=True)
class Printed:
    """Programs wrote this to the terminal."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Changed:
    """The state, the size or the job of the terminal has changed."""

    status: TerminalStatus


@dataclass(frozen=True, slots=True)
class Redrawn:
    """All of the screen may be different: it has another size, or output was lost."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """A checkpoint has cut the connection; pending answers will not come."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The branch was restored: this is the terminal as it was then."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The terminal was closed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Init has answered a request that was sent through this view, with a ``refusal`` if it refused."""

    refusal: InitRefused | None


Event = Printed | Changed | Redrawn | Reconnected | Replaced | Ended | Answered


class TerminalView:
    """A context manager: leaving it closes the connection and the emulator."""

    def __init__(self, address: BranchAddress, terminal: str, *, history: int = 0) -> None:
        self.address = address
        self.terminal = terminal
        self.status: TerminalStatus
        self._history = history
        self._emulator: Emulator | None = None
        self._client: ShellClient | None = None
        try:
            self._replay()
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> "TerminalView":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def fileno(self) -> int:
        return self._connection().fileno()

    def screen(self, scrollback: int = 0) -> Screen:
        assert self._emulator is not None
        return self._emulator.screen(scrollback)

    def is_alternate(self) -> bool:
        """Whether a full-screen program shows its own screen."""
        assert self._emulator is not None
        return self._emulator.is_alternate

    def scrolled(self) -> int:
        """How many lines have scrolled off the screen since the view began or was redrawn."""
        assert self._emulator is not None
        return self._emulator.scrolled

    def send(self, frame: bytes) -> None:
        """Send a request about the terminal; its answer is the event Answered.

        While the gate is held no checkpoint can come between: Reconnected then means that init did not receive it.
        """
        try:
            self._connection().send(frame)
        except ConnectionLost:
            return  # events() notices it

    def events(self, timeout_s: float | None) -> Iterator[Event]:
        """Wait up to ``timeout_s`` for the first event, then yield all that have arrived."""
        try:
            frame = self._connection().next_frame(timeout_s)
            while True:
                yield self._take(*frame)
                frame = self._connection().next_frame(0.0)
        except TimeoutError:
            return
        except ConnectionLost:
            yield from self._recover_connection()

    def _take(self, kind: int, payload: bytes) -> Event:
        assert self._emulator is not None
        if kind == Reply.OUTPUT:
            offset, data = parse_output(payload)
            self._offset = offset + len(data)
            self._emulator.feed(data)
            return Printed(data)
        if kind == Reply.RESIZED:
            self._emulator.resize(*parse_resized(payload))
            return Redrawn()
        if kind == Reply.TERMINAL:
            self.status = parse_terminal(payload)
            return Changed(self.status)
        if kind == Reply.LOST:
            return Redrawn()
        if kind == Reply.OK:
            return Answered(None)
        if kind == Reply.ERROR:
            return Answered(InitRefused(*parse_error(payload)))
        if kind == Reply.END:
            return Ended()
        raise ProtocolError(f"frame {kind:#x} while watching a terminal")

    def _recover_connection(self) -> Iterator[Event]:
        """Reconnect after a checkpoint; after a restore, begin again with the restored terminal."""
        if self._reconnect():
            yield Reconnected()
            return
        self._close()
        self._replay()
        yield Replaced()

    def _reconnect(self) -> bool:
        """Continue to watch from where we were; False if the branch has another incarnation by now."""
        self._connection().close()
        with self.address.gate():
            if self.address.incarnation() != self._incarnation:
                return False
            self._client = self._watch(self._incarnation, self._offset)
        return True

    def _replay(self) -> None:
        """Show all that init has kept of the terminal's output."""
        while not self._try_replay():
            self._close()

    def _try_replay(self) -> bool:
        with self.address.gate():
            self._incarnation = self.address.incarnation()
            self._client = self._watch(self._incarnation, 0)
        self._offset = self.status.stream_start
        end = self.status.stream_end
        self._emulator = Emulator(self.status.rows, self.status.columns, history=self._history)
        while self._offset < end:
            try:
                self._take(*self._connection().next_frame(None))
            except ConnectionLost:  # a checkpoint, or a restore
                if not self._reconnect():
                    return False
        return True

    def _watch(self, incarnation: str, offset: int) -> ShellClient:
        client = self.address.connect(incarnation)
        try:
            payload = client.ask(encode_watch(self.terminal, offset), Reply.TERMINAL)
        except InitRefused as refusal:
            client.close()
            raise shell_error(refusal, self.address.where, self.terminal) from refusal
        except BaseException:
            client.close()
            raise
        self.status = parse_terminal(payload)
        return client

    def _connection(self) -> ShellClient:
        assert self._client is not None
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._emulator is not None:
            self._emulator.close()
        self._client = self._emulator = None
