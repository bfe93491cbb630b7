"""Frames between the host and init: encode, decode, no I/O. ``docs/shell-protocol.md`` is the contract.

A frame is a length (u32, of what follows), a kind (u8) and a payload, little-endian. The C side is
``native/init/frame.c``.
"""

from __future__ import annotations

import struct

from waypoint.errors import Broken

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "VERSION",
    "Ended",
    "ErrorCode",
    "FrameReader",
    "How",
    "ProtocolError",
    "Reply",
    "Request",
    "TerminalState",
    "TerminalStatus",
    "encode_follow",
    "encode_frame",
    "encode_open",
    "encode_resize",
    "encode_run",
    "encode_signal",
    "parse_ended",
    "parse_error",
    "parse_output",
    "parse_terminal",
]

VERSION = 1
FRAME_BYTES_MAX = (64 << 10) + 64  # of what init sends

_LENGTH = struct.Struct("<I")
_RUN_FOLLOW = 1


class ProtocolError(Broken):
    """The other side sent what the protocol does not allow."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"its init does not keep to the protocol: {what}", hint="restore a checkpoint to go on"
        )


class Request:
    OPEN = 0x01
    RUN = 0x02
    FOLLOW = 0x03
    SIGNAL = 0x04
    INPUT = 0x05
    RESIZE = 0x06
    JOBS = 0x07
    TERMINALS = 0x08
    STREAM = 0x09
    CLOSE = 0x0A
    QUIESCE = 0x0B
    PING = 0x0C


class Reply:
    HELLO = 0x81
    OK = 0x82
    ERROR = 0x83
    STARTED = 0x84
    OUTPUT = 0x85
    ENDED = 0x86
    LOST = 0x87
    JOB = 0x88
    TERMINAL = 0x89
    END = 0x8A


class ErrorCode:
    MALFORMED = 1
    UNKNOWN_TERMINAL = 2
    BUSY = 3
    SHELL_DEAD = 4
    UNKNOWN_JOB = 5
    TOO_LARGE = 6
    EXEC_FAILED = 7
    LIMIT = 8
    NOT_READY = 9
    SHELL = 10
    NOT_DELIVERED = 11
    INTERNAL = 12


class How:
    """How a job ended, hence what its status means."""

    STATUS = 0
    SHELL_EXITED = 1
    SHELL_KILLED = 2
    TERMINAL_CLOSED = 3


class TerminalState:
    STARTING = 0
    PROMPT = 1
    RUNNING = 2
    TYPED = 3
    DEAD = 4


class Ended:
    """How a job ended; ``how`` says what ``status`` means."""

    __slots__ = ("how", "job", "length", "status")

    def __init__(self, *, job: int, how: int, status: int, length: int) -> None:
        self.job = job
        self.how = how
        self.status = status
        self.length = length


class TerminalStatus:
    """One terminal of a branch; ``job`` is 0 when none runs in it."""

    __slots__ = ("columns", "job", "name", "rows", "shell_pid", "state")

    def __init__(self, *, name: str, state: int, shell_pid: int, rows: int, columns: int, job: int) -> None:
        self.name = name
        self.state = state
        self.shell_pid = shell_pid
        self.rows = rows
        self.columns = columns
        self.job = job


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> tuple[int, bytes] | None:
        """The next whole frame, or None until more is fed."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 1 <= length <= FRAME_BYTES_MAX:
            raise ProtocolError(f"frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        kind = self._buffer[_LENGTH.size]
        if not Reply.HELLO <= kind <= Reply.END:
            raise ProtocolError(f"frame of unknown kind {kind:#x}")
        payload = bytes(self._buffer[_LENGTH.size + 1 : end])
        del self._buffer[:end]
        return kind, payload


def encode_frame(kind: int, payload: bytes = b"") -> bytes:
    return _LENGTH.pack(1 + len(payload)) + bytes((kind,)) + payload


def encode_open(
    terminal: str,
    *,
    rows: int,
    columns: int,
    uid: int,
    gid: int,
    cwd: str,
    rc: str,
    run_line: str,
    argv: Sequence[str],
    env: Sequence[str],
) -> bytes:
    payload = _string(terminal) + struct.pack("<HHII", rows, columns, uid, gid)
    payload += _string(cwd) + _string(rc) + _string(run_line)
    for strings in (argv, env):
        payload += struct.pack("<I", len(strings)) + b"".join(_string(text) for text in strings)
    return encode_frame(Request.OPEN, payload)


def encode_run(terminal: str, text: bytes) -> bytes:
    return encode_frame(Request.RUN, _string(terminal) + bytes((_RUN_FOLLOW,)) + _blob(text))


def encode_follow(job: int, offset: int) -> bytes:
    return encode_frame(Request.FOLLOW, struct.pack("<IQ", job, offset))


def encode_signal(terminal: str, signal_number: int) -> bytes:
    return encode_frame(Request.SIGNAL, _string(terminal) + bytes((signal_number,)))


def encode_input(terminal: str, data: bytes) -> bytes:
    return encode_frame(Request.INPUT, _string(terminal) + _blob(data))


def encode_stream(terminal: str, offset: int) -> bytes:
    return encode_frame(Request.STREAM, _string(terminal) + struct.pack("<Q", offset))


def encode_resize(terminal: str, rows: int, columns: int) -> bytes:
    return encode_frame(Request.RESIZE, _string(terminal) + struct.pack("<HH", rows, columns))


def parse_error(payload: bytes) -> tuple[int, str]:
    code, length = _unpack("<HI", payload)
    return code, payload[6 : 6 + length].decode(errors="replace")


def parse_output(payload: bytes) -> tuple[int, bytes]:
    (offset,) = _unpack("<Q", payload)
    return offset, payload[8:]


def parse_ended(payload: bytes) -> Ended:
    job, how, status, length = _unpack("<IBiQ", payload)
    return Ended(job=job, how=how, status=status, length=length)


def parse_terminal(payload: bytes) -> TerminalStatus:
    (length,) = _unpack("<I", payload)
    name = payload[4 : 4 + length].decode(errors="replace")
    state, pid, rows, columns, _start, _end, job = _unpack("<BIHHQQI", payload, 4 + length)
    return TerminalStatus(name=name, state=state, shell_pid=pid, rows=rows, columns=columns, job=job)


def _unpack(layout: str, payload: bytes, at: int = 0) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, payload, at)
    except struct.error as error:
        raise ProtocolError(f"a payload of {len(payload)} bytes") from error


def _string(text: str) -> bytes:
    return _blob(text.encode(errors="surrogateescape"))


def _blob(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
