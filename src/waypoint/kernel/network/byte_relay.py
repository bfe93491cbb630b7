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
    """Carry bytes until both ends have finished sending, then close both; a reset of one resets the other.

    An end is read again only when the other has taken what it sent before. One that has finished sending still
    receives. Bytes are moved inside ``holding()`` blocks; it may take time to enter one.
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
        except OSError:  # one end is lost: reset the other too
            for end in (one, other):
                reset_when_closed(end)


def reset_when_closed(end: socket.socket) -> None:
    """When this end is closed, let the peer see an error instead of an end of file."""
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
        if events & _BROKEN and not wanted[fd]:  # reset after it has finished sending: no flow would notice
            raise ConnectionResetError


class _Flow:
    """One direction."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        self._pending = memoryview(b"")
        self.is_over = False

    def awaits(self) -> tuple[int, int]:
        """The descriptor and the event of it to wait for before there is something to move."""
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
