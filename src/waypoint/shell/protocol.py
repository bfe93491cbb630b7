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
    "FROM_NOW",
    "VERSION",
    "Ask",
    "Ended",
    "ErrorCode",
    "FrameReader",
    "How",
    "JobStatus",
    "ProtocolError",
    "Reply",
    "Request",
    "TerminalState",
    "TerminalStatus",
    "encode_answer",
    "encode_follow",
    "encode_frame",
    "encode_input",
    "encode_job",
    "encode_kill",
    "encode_named",
    "encode_open",
    "encode_resize",
    "encode_run",
    "encode_signal",
    "encode_spawn",
    "encode_stream",
    "encode_watch",
    "encode_write",
    "parse_ask",
    "parse_ended",
    "parse_error",
    "parse_job",
    "parse_output",
    "parse_resized",
    "parse_terminal",
]

VERSION = 2
FRAME_BYTES_MAX = (64 << 10) + 64  # of a frame that init sends

_LENGTH = struct.Struct("<I")
_FOLLOW, _WITH_INPUT, _KEEP = 1, 2, 4
FROM_NOW = (1 << 64) - 1


class ProtocolError(Broken):
    """The other side sent what the protocol does not allow."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"its init does not follow the protocol: {what}", hint="restore a checkpoint to continue"
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
    SPAWN = 0x0D
    WRITE = 0x0E
    WAIT = 0x0F
    KILL = 0x10
    WATCH = 0x11
    ATTEND = 0x12
    ANSWER = 0x13


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
    ERROR_OUTPUT = 0x8B
    RESIZED = 0x8C
    ASK = 0x8D


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
    STDIN_CLOSED = 13
    UNKNOWN_ASK = 14


class How:
    """How a job ended, hence what its status means."""

    STATUS = 0
    SHELL_EXITED = 1
    SHELL_KILLED = 2
    TERMINAL_CLOSED = 3
    KILLED = 4


class TerminalState:
    STARTING = 0
    PROMPT = 1
    RUNNING = 2
    TYPED = 3
    DEAD = 4


class Ended:
    """How a job ended; ``how`` says what ``status`` means."""

    __slots__ = ("error_length", "how", "job", "length", "status")

    def __init__(self, job: int, how: int, status: int, length: int, error_length: int) -> None:
        self.job = job
        self.how = how
        self.status = status
        self.length = length
        self.error_length = error_length

    @property
    def exit_code(self) -> int:
        """As a shell reports it: 128+n for a signal."""
        return 128 + self.status if self.how in (How.KILLED, How.SHELL_KILLED) else self.status


class JobStatus:
    """One job of a branch. Output before ``kept_from`` is no longer kept; ``terminal`` is empty if isolated."""

    __slots__ = ("ended", "error_kept_from", "error_length", "job", "kept_from", "length", "pid", "terminal")

    def __init__(
        self,
        *,
        job: int,
        terminal: str,
        ended: Ended | None,
        length: int,
        kept_from: int,
        error_length: int,
        error_kept_from: int,
        pid: int,
    ) -> None:
        self.job = job
        self.terminal = terminal
        self.ended = ended
        self.length = length
        self.kept_from = kept_from
        self.error_length = error_length
        self.error_kept_from = error_kept_from
        self.pid = pid


class Ask:
    """What a program inside the branch asks of the host."""

    __slots__ = ("argument", "number", "verb")

    def __init__(self, number: int, verb: str, argument: str) -> None:
        self.number = number
        self.verb = verb
        self.argument = argument


class TerminalStatus:
    """One terminal of a branch; ``job`` is 0 when none runs in it."""

    __slots__ = ("columns", "job", "name", "rows", "shell_pid", "state", "stream_end", "stream_start")

    def __init__(
        self,
        name: str,
        *,
        state: int,
        shell_pid: int,
        rows: int,
        columns: int,
        stream_start: int,
        stream_end: int,
        job: int,
    ) -> None:
        self.stream_start = stream_start
        self.stream_end = stream_end
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

    def is_complete(self) -> bool:
        """Whether a whole frame was fed, or bytes that can never become one."""
        if len(self._buffer) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._buffer)
        return length > FRAME_BYTES_MAX or len(self._buffer) >= _LENGTH.size + int(length)

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
        if not Reply.HELLO <= kind <= Reply.ASK:
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
    groups: Sequence[int] = (),
) -> bytes:
    payload = _string(terminal) + struct.pack("<HHII", rows, columns, uid, gid)
    payload += _string(cwd) + _string(rc) + _string(run_line)
    return encode_frame(Request.OPEN, payload + _strings(argv) + _strings(env) + _groups(groups))


def encode_run(terminal: str, text: bytes, *, follow: bool = True) -> bytes:
    flags = _FOLLOW if follow else 0
    return encode_frame(Request.RUN, _string(terminal) + bytes((flags,)) + _blob(text))


def encode_spawn(
    argv: Sequence[str],
    *,
    env: Sequence[str],
    cwd: str,
    uid: int,
    gid: int,
    groups: Sequence[int] = (),
    follow: bool,
    with_input: bool,
    keep: bool,
) -> bytes:
    flags = (_FOLLOW if follow else 0) | (_WITH_INPUT if with_input else 0) | (_KEEP if keep else 0)
    payload = struct.pack("<BII", flags, uid, gid) + _string(cwd) + _strings(argv) + _strings(env)
    return encode_frame(Request.SPAWN, payload + _groups(groups))


def encode_write(job: int, offset: int, data: bytes) -> bytes:
    """Write ``data`` at ``offset`` of the input; no data ends it. Init does not take twice what it has already."""
    return encode_frame(Request.WRITE, struct.pack("<IQ", job, offset) + _blob(data))


def encode_follow(job: int, offset: int, error_offset: int = 0) -> bytes:
    return encode_frame(Request.FOLLOW, struct.pack("<IQQ", job, offset, error_offset))


def encode_job(kind: int, job: int) -> bytes:
    """A request that needs only the number of a job."""
    return encode_frame(kind, struct.pack("<I", job))


def encode_kill(job: int, signal_number: int) -> bytes:
    return encode_frame(Request.KILL, struct.pack("<IB", job, signal_number))


def encode_named(kind: int, terminal: str) -> bytes:
    """A request that needs only the name of a terminal."""
    return encode_frame(kind, _string(terminal))


def encode_watch(terminal: str, offset: int) -> bytes:
    return encode_frame(Request.WATCH, _string(terminal) + struct.pack("<Q", offset))


def encode_answer(ask: int, status: int, text: str) -> bytes:
    return encode_frame(Request.ANSWER, struct.pack("<IB", ask, status) + _string(text))


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
    return code, _printable(payload[6 : 6 + length])


def parse_output(payload: bytes) -> tuple[int, bytes]:
    (offset,) = _unpack("<Q", payload)
    return offset, payload[8:]


def parse_ended(payload: bytes) -> Ended:
    return Ended(*_unpack("<IBiQQ", payload))


def parse_resized(payload: bytes) -> tuple[int, int]:
    """Rows and columns."""
    _offset, rows, columns = _unpack("<QHH", payload)
    return rows, columns


def parse_job(payload: bytes) -> JobStatus:
    job, _kind, length = _unpack("<IBI", payload)
    terminal = _printable(payload[9 : 9 + length])
    state, how, status, produced, kept_from, error_length, error_kept_from, pid = _unpack(
        "<BBiQQQQI", payload, 9 + length
    )
    return JobStatus(
        job=job,
        terminal=terminal,
        ended=Ended(job, how, status, produced, error_length) if state else None,
        length=produced,
        kept_from=kept_from,
        error_length=error_length,
        error_kept_from=error_kept_from,
        pid=pid,
    )


def parse_ask(payload: bytes) -> Ask:
    number, length = _unpack("<II", payload)
    (rest,) = _unpack("<I", payload, 8 + length)
    argument = payload[12 + length : 12 + length + rest]
    return Ask(number, _printable(payload[8 : 8 + length]), _printable(argument))


def parse_terminal(payload: bytes) -> TerminalStatus:
    (length,) = _unpack("<I", payload)
    name = _printable(payload[4 : 4 + length])
    state, pid, rows, columns, start, end, job = _unpack("<BIHHQQI", payload, 4 + length)
    return TerminalStatus(
        name,
        state=state,
        shell_pid=pid,
        rows=rows,
        columns=columns,
        stream_start=start,
        stream_end=end,
        job=job,
    )


def _unpack(layout: str, payload: bytes, at: int = 0) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, payload, at)
    except struct.error as error:
        raise ProtocolError(f"a payload of {len(payload)} bytes") from error


def _printable(text: bytes) -> str:
    """Text from inside a branch, harmless to print: no control characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text.decode(errors="replace"))


def _string(text: str) -> bytes:
    return _blob(text.encode(errors="surrogateescape"))


def _strings(texts: Sequence[str]) -> bytes:
    return struct.pack("<I", len(texts)) + b"".join(_string(text) for text in texts)


def _groups(groups: Sequence[int]) -> bytes:
    """Last in a request, and left out if there are none: an older init knows no groups."""
    return struct.pack(f"<I{len(groups)}I", len(groups), *groups) if groups else b""


def _blob(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
