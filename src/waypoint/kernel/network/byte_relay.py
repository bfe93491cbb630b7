"""Carry bytes between two connected sockets, both ways, until both directions have ended."""

import select
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

__all__ = ["relay", "reset_when_closed"]

CHUNK_BYTES = 1 << 17
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets


def relay(
    one: socket.socket,
    other: socket.socket,
    *,
    holding: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Carry until both have said their last, then close them; a reset of one resets the other.

    Each end is read only when what it said before has been taken. One that ends its own direction can still be answered.
    Bytes are moved inside ``holding()`` blocks, which may take their time to be entered.
    """
    with one, other:
        for end in (one, other):
            end.setblocking(False)
        flows = (_Flow(one, other), _Flow(other, one))
        try:
            while not all(flow.is_over for flow in flows):
                _wait(flows)
                with holding():
                    for flow in flows:
                        flow.advance()
        except OSError:  # one end is lost, and so is the other
            for end in (one, other):
                reset_when_closed(end)


def reset_when_closed(end: socket.socket) -> None:
    """Let the peer see an error instead of an end."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _wait(flows: "tuple[_Flow, _Flow]") -> None:
    wanted: dict[int, int] = {}
    for flow in flows:
        fd, event = flow.awaits()
        wanted[fd] = wanted.get(fd, 0) | event
    poll = select.poll()
    for fd, events in wanted.items():
        poll.register(fd, events)
    for fd, events in poll.poll():
        if events & _BROKEN and not wanted[fd]:  # reset after its last word: no flow would notice
            raise ConnectionResetError


class _Flow:
    """One direction."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        self._pending = memoryview(b"")
        self.is_over = False

    def awaits(self) -> tuple[int, int]:
        """What must happen to which end before there is something to move."""
        if self._pending:
            return self._target.fileno(), select.POLLOUT
        return self._source.fileno(), 0 if self.is_over else select.POLLIN

    def advance(self) -> None:
        """Move what can be moved without waiting."""
        try:
            if not self._pending and not self.is_over:
                self._pending = memoryview(self._source.recv(CHUNK_BYTES))
                if not self._pending:
                    self.is_over = True
                    self._target.shutdown(socket.SHUT_WR)
            if self._pending:
                self._pending = self._pending[self._target.send(self._pending) :]
        except BlockingIOError:
            return
