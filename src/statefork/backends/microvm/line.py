"""The host's end of the line into a microVM: a stream that callers use one after the other.

A virtual serial port has no connections: what one caller left unfinished reaches the machine just before the next one's
first words. So each caller names itself by a new nonce, and both sides ignore whatever was sent before or after its own
time. ``native/init/line.h`` has the other end, and the words.
"""

import secrets
import time

# ShellClient uses this kind of socket, which is the core of the module `socket`.
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket

from waypoint.errors import Broken

__all__ = ["Line"]

FLAG, ESCAPE = b"\xc0", b"\xdb"
ESCAPED_FLAG, ESCAPED_ESCAPE = b"\xdb\xdc", b"\xdb\xdd"
WORD_END = b"\n"
WORD_BYTES_MAX = 1 << 16
SEED_BYTES = 32


class Line(Socket):
    """A caller's socket. After :meth:`open` it carries the connection to init, and nothing else."""

    def __init__(self) -> None:
        super().__init__(AF_UNIX, SOCK_STREAM)
        self._nonce = secrets.token_hex(8).encode()
        self._raw = b""
        self._first = b""
        self._is_open = False
        self._is_over = False
        self._is_renewed = False

    def open(self, timeout_s: float, *, renew: bool) -> None:
        """Reach init; with ``renew``, set the machine's clock and seed its random numbers first.

        Raises TimeoutError, or Broken if init does not listen or the line was cut.
        """
        deadline = time.monotonic() + timeout_s
        words = _word(b"O" + self._nonce)
        if renew:
            words += _word(f"R{time.time():.6f} {secrets.token_hex(SEED_BYTES)}".encode())
        self.settimeout(timeout_s)
        super().sendall(words)
        while not (self._is_open and (self._is_renewed or not renew)):
            if self._is_over:
                raise Broken("its init does not listen")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.settimeout(left)
            self._first += self._receive(1 << 16)

    def receive_raw(self, size: int) -> bytes:
        """Before :meth:`open`: read what a monitor in between sends."""
        return super().recv(size)

    def sendall(self, data: bytes, flags: int = 0, /) -> None:  # type: ignore[override]
        super().sendall(data.replace(ESCAPE, ESCAPED_ESCAPE).replace(FLAG, ESCAPED_FLAG), flags)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        while True:
            data = self._receive(size)
            if data or self._is_over:
                return data

    def _receive(self, size: int) -> bytes:
        """The data that arrived for this caller; empty if that was only words, or the line is closed."""
        if self._is_over:
            return b""
        raw = super().recv(size)
        if not raw:
            self._is_over = True
            return b""
        return self._parse(self._raw + raw)

    def _parse(self, raw: bytes) -> bytes:
        self._raw = b""
        data = []
        while raw:
            at = raw.find(FLAG)
            if at < 0:
                # Half an escape waits for its other half; a FLAG instead would mean that it was cut off.
                cut = len(raw) - raw.endswith(ESCAPE)
                data.append(self._data(raw[:cut]))
                self._raw = raw[cut:]
                break
            data.append(self._data(raw[:at]))
            end = raw.find(WORD_END, at)
            if end < 0:
                self._raw = raw[at:]
                if len(self._raw) > WORD_BYTES_MAX:  # the machine is not trusted
                    raise Broken("the machine does not keep to the protocol of its line")
                break
            self._handle_word(raw[at:end].rpartition(FLAG)[2])
            raw = raw[end + 1 :]
        return b"".join(data)

    def _data(self, raw: bytes) -> bytes:
        if not self._is_open or self._is_over:
            return b""
        return raw.replace(ESCAPED_FLAG, FLAG).replace(ESCAPED_ESCAPE, ESCAPE)

    def _handle_word(self, word: bytes) -> None:
        if word == b"O" + self._nonce:
            self._is_open = True
        elif word == b"E" + self._nonce:
            self._is_over = True
        elif word.startswith(b"R" + self._nonce):
            error = word.rpartition(b" ")[2]
            if error != b"0":
                raise Broken(f"the machine cannot set its clock and random numbers: error {error.decode()}")
            self._is_renewed = True


def _word(text: bytes) -> bytes:
    return FLAG + text + WORD_END
