"""Attach a person's own terminal to a terminal of a branch: it becomes its window.

What they type goes in, what it prints comes out, unchanged. Checkpoints of the branch pass unnoticed. When the
branch is restored, their screen is drawn again as it was at that point, and they can keep typing.
"""

import fcntl
import os
import select
import signal
import struct
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from waypoint.errors import UsageError
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.terminals.watch import (
    Answered,
    Ended,
    Event,
    Printed,
    Reconnected,
    Redrawn,
    Replaced,
    TerminalView,
)
from waypoint.shell.client import InitRefused
from waypoint.shell.protocol import ErrorCode, TerminalState, encode_input, encode_resize
from waypoint.shell.rendering import redraw
from waypoint.shell.terminal import WindowSize

__all__ = ["attach", "require_terminal"]

_READ_BYTES = 4096
_QUEUE_BYTES_MAX = 1 << 20  # of a paste that the terminal has not taken yet
_TRY_AGAIN_MS = 50
NOTICE_S = 4.0
# Undo whatever a full-screen program had set on the person's own terminal.
_RESET = b"\x1b[0m\x1b[?1000;1002;1003;1006;2004;1l\x1b>\x1b[r\x1b[?1049l\x1b[?25h\r\n"


def require_terminal(keyboard: int, window: int) -> None:
    """Raises UsageError unless there is a person's terminal at both."""
    if not (os.isatty(keyboard) and os.isatty(window)):
        raise UsageError("attach needs a terminal", hint="use waypoint screen and waypoint send in scripts")


def attach(
    address: BranchAddress,
    terminal: str,
    *,
    keyboard: int,
    window: int,
    detach_key: int,
    notice: str,
    read_only: bool = False,
) -> str:
    """Connect the caller's terminal (descriptors ``keyboard`` and ``window``) with one of a branch.

    ``notice`` is shown in the last row for some seconds, or until a key is pressed.
    Returns why it ended: ``detached``, ``exited`` (its shell has ended), ``closed``, or ``hung up``.
    """
    with TerminalView(address, terminal) as view, _raw(keyboard), _resizes() as resized:
        attachment = _Attachment(view, keyboard, window, detach_key, notice, read_only=read_only)
        return attachment.run(resized)


class _Attachment:
    def __init__(
        self,
        view: TerminalView,
        keyboard: int,
        window: int,
        detach_key: int,
        notice: str,
        *,
        read_only: bool,
    ) -> None:
        self._view = view
        self._keyboard = keyboard
        self._window = window
        self._detach_key = bytes((detach_key,))
        self._read_only = read_only
        self._notice = notice
        self._notice_until = time.monotonic() + NOTICE_S
        self._typed = bytearray()
        self._is_blocked = False
        self._must_fit = True
        self._is_normal_screen_stale = False
        self._end = "exited" if view.status.state == TerminalState.DEAD else ""

    def run(self, resized: int) -> str:
        try:
            self._redraw()
            while not self._end:
                self._take_turn(resized)
        finally:
            self._show(_RESET)
        return self._end

    def _take_turn(self, resized: int) -> None:
        if self._must_fit:
            self._fit()
        # First the frames that a request has left in our buffer, which poll does not see.
        for event in self._view.events(0.0):
            self._handle(event)
        if self._end:
            return
        poll = select.poll()
        if len(self._typed) < _QUEUE_BYTES_MAX:
            poll.register(self._keyboard, select.POLLIN)
        poll.register(self._view.fileno(), select.POLLIN)
        poll.register(resized, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(self._poll_timeout_ms())}
        if self._notice and time.monotonic() >= self._notice_until:
            self._clear_notice()
        if self._view.fileno() in ready:
            for event in self._view.events(None):
                self._handle(event)
        if resized in ready:
            os.read(resized, _READ_BYTES)
            self._must_fit = True
        if self._keyboard in ready:
            self._read_keys()
            self._fit()  # keys that follow a change of the window are meant for the new size
        self._type()

    def _read_keys(self) -> None:
        try:
            keys = os.read(self._keyboard, _READ_BYTES)
        except OSError:  # the person's own terminal was closed
            keys = b""
        self._clear_notice()
        before, key, _ = keys.partition(self._detach_key)
        if not self._read_only:
            self._typed += before
        if key or not keys:
            self._end = "detached" if key else "hung up"

    def _type(self) -> None:
        self._is_blocked = False
        while self._typed and not self._is_blocked:
            piece = bytes(self._typed[:_READ_BYTES])
            refusal = self._request(encode_input(self._view.terminal, piece))
            if refusal is not None and refusal.reason == ErrorCode.TOO_LARGE:
                self._is_blocked = True  # its program does not read: try again a little later
            else:
                del self._typed[: len(piece)]

    def _fit(self) -> None:
        """Give the terminal the size of the window."""
        self._must_fit = False
        size = _window_size(self._window)
        if not self._read_only and size != (self._view.status.rows, self._view.status.columns):
            self._request(encode_resize(self._view.terminal, *size))

    def _request(self, frame: bytes) -> InitRefused | None:
        """Send a request and wait until it is answered once, whatever happens to the connection."""
        meanwhile: list[Event] = []
        try:
            with self._view.address.gate():
                self._view.send(frame)
                while True:
                    for event in self._view.events(None):
                        if isinstance(event, Answered):
                            return event.refusal
                        if isinstance(event, Reconnected):
                            self._view.send(frame)
                        meanwhile.append(event)
                        if isinstance(event, (Replaced, Ended)):
                            return None
        finally:
            # Only after the gate: a window that takes nothing must not hold the gate, and with it all checkpoints.
            for event in meanwhile:
                self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Printed):
            if self._notice:
                self._redraw()
            else:
                self._show(event.data)
            if self._is_normal_screen_stale and not self._view.is_alternate():
                self._redraw()
        elif isinstance(event, Redrawn):
            self._redraw()
        elif isinstance(event, Replaced):
            self._typed.clear()  # it was meant for the state before the restore
            self._must_fit = True
            self._redraw()
        elif isinstance(event, Ended):
            self._end = "closed"
        if self._view.status.state == TerminalState.DEAD:
            self._end = self._end or "exited"

    def _redraw(self) -> None:
        self._show(redraw(self._view.screen()))
        # Below a full-screen program the window does not have what the branch's terminal has there.
        self._is_normal_screen_stale = self._view.is_alternate()
        if self._notice:
            rows, columns = _window_size(self._window)
            text = f" {self._notice} "[:columns].encode()
            self._show(b"\x1b7\x1b[%d;1H\x1b[7m%s\x1b[0m\x1b8" % (rows, text))

    def _clear_notice(self) -> None:
        """Remove the notice and show what it covered."""
        if self._notice:
            self._notice = ""
            self._redraw()

    def _poll_timeout_ms(self) -> float | None:
        if self._is_blocked:
            return _TRY_AGAIN_MS
        return max(0.0, self._notice_until - time.monotonic()) * 1000 if self._notice else None

    def _show(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._window, data) :]


def _window_size(window: int) -> WindowSize:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(window, termios.TIOCGWINSZ, bytes(8)))
    return rows or 24, columns or 80


@contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    mode = termios.tcgetattr(keyboard)
    tty.setraw(keyboard, termios.TCSADRAIN)  # what was typed ahead is meant for the branch
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, mode)


@contextmanager
def _resizes() -> Iterator[int]:
    """A descriptor that becomes readable when the window has another size."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def wake(_number: int, _frame: FrameType | None) -> None:
        try:
            os.write(write_end, b"w")
        except BlockingIOError:  # it is awake already
            return

    before = signal.signal(signal.SIGWINCH, wake)
    try:
        yield read_end
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(read_end)
        os.close(write_end)
