"""A connection to the init of one branch.

The socket is a file of the branch, which an untrusted agent may have replaced by a link to anywhere: no link
is followed on the way to it, and only a socket is connected to.
"""

from __future__ import annotations

import os
import stat
import time

# The core of the module `socket`, which itself takes longer to import than a command takes to run.
from _socket import AF_UNIX, SHUT_RDWR, SOCK_STREAM
from _socket import socket as Socket

from waypoint.errors import Broken, NotFound, ShellDied, ShellError
from waypoint.shell.protocol import (
    VERSION,
    ErrorCode,
    FrameReader,
    JobStatus,
    ProtocolError,
    Reply,
    Request,
    TerminalStatus,
    encode_frame,
    encode_input,
    encode_signal,
    encode_stream,
    parse_error,
    parse_job,
    parse_terminal,
)

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

__all__ = ["ConnectionLost", "InitRefused", "ShellClient", "shell_error", "silent"]

CONTROL_DIRECTORY, CONTROL_SOCKET = ".waypoint", "sock"
HELLO_TIMEOUT_S = 5.0  # an agent may have put a socket of its own there, which sends nothing
ANSWER_TIMEOUT_S = 20.0  # init answers at once; only OPEN waits, for the shell's first prompt
RECEIVE_BYTES = 1 << 18
_RESTORE = "restore a checkpoint: waypoint restore SESSION[:BRANCH] NAME"


class ConnectionLost(Broken):
    """Init closed the connection: the branch is being saved, was replaced, or ended."""

    def __init__(self) -> None:
        super().__init__("its init closed the connection", hint=_RESTORE)


class InitRefused(ShellError):
    """Init answered a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.reason = code


class ShellClient:
    """One connection; a context manager. Requests are answered in order."""

    hello_timeout_s = HELLO_TIMEOUT_S

    def __init__(self, root: str | PathLike[str] | Socket) -> None:
        """Connect to the init of the branch with the root ``root``, or use a connection to it."""
        self._reader = FrameReader()
        self._socket = root if isinstance(root, Socket) else _connect(root)
        try:
            kind, payload = self.next_frame(self.hello_timeout_s)
            version = int.from_bytes(payload[:2], "little")
            if kind != Reply.HELLO or version != VERSION:
                raise Broken(
                    f"the branch's init speaks protocol {version}, but this version of waypoint speaks {VERSION}",
                    hint="use the version of waypoint that made the session",
                )
        except TimeoutError as error:
            self.close()
            raise silent() from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ShellClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def start(self, frame: bytes) -> int:
        """Send a request that starts a job; return the job's number."""
        return int.from_bytes(self.ask(frame, Reply.STARTED)[:4], "little")

    def signal(self, terminal: str, signal_number: int) -> None:
        """Send a signal to the foreground processes; the answer comes among the frames."""
        self.send(encode_signal(terminal, signal_number))

    def type(self, terminal: str, data: bytes) -> None:
        """Type ``data`` into the terminal, as if at its keyboard."""
        self.ask(encode_input(terminal, data))

    def stream(self, terminal: str) -> Iterator[tuple[int, bytes]]:
        """What the terminal has shown, as far back as init keeps it: OUTPUT, LOST and RESIZED frames."""
        self.send(encode_stream(terminal, 0))
        return self._listing(Reply.OUTPUT, Reply.LOST, Reply.RESIZED)

    def jobs(self) -> list[JobStatus]:
        self.send(encode_frame(Request.JOBS))
        return [parse_job(payload) for _kind, payload in self._listing(Reply.JOB)]

    def ping(self) -> None:
        self.ask(encode_frame(Request.PING))

    def quiesce(self) -> None:
        """Make init drop every connection; return when it has dropped this one, the last."""
        self.ask(encode_frame(Request.QUIESCE))
        try:
            self.next_frame(ANSWER_TIMEOUT_S)
        except ConnectionLost:
            return
        raise ProtocolError("a frame after the answer to QUIESCE")

    def terminals(self) -> list[TerminalStatus]:
        self.send(encode_frame(Request.TERMINALS))
        return [parse_terminal(payload) for _kind, payload in self._listing(Reply.TERMINAL)]

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self) -> None:
        """End the connection while another thread waits on it."""
        try:
            self._socket.shutdown(SHUT_RDWR)
        except OSError:  # the other side was faster
            return

    def ask(
        self, frame: bytes, expected: int = Reply.OK, *, timeout_s: float | None = ANSWER_TIMEOUT_S
    ) -> bytes:
        """Send a request and return the payload of its answer. Raises InitRefused."""
        self.send(frame)
        try:
            kind, payload = self.next_frame(timeout_s)
        except TimeoutError as error:
            raise silent() from error
        if kind == Reply.ERROR:
            raise InitRefused(*parse_error(payload))
        if kind != expected:
            raise ProtocolError(f"frame {kind:#x} instead of {expected:#x}")
        return payload

    def send(self, frame: bytes) -> None:
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        try:
            self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionLost from error

    def next_frame(self, timeout_s: float | None) -> tuple[int, bytes]:
        """The next frame. Raises ConnectionLost, or TimeoutError after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            frame = self._reader.next_frame()
            if frame is not None:
                return frame
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except ConnectionResetError as error:
                raise ConnectionLost from error
            if not data:
                raise ConnectionLost
            self._reader.feed(data)

    def has_frame(self) -> bool:
        """Whether next_frame() would return or raise at once; it raises if the connection is lost."""
        if self._reader.is_complete():
            return True
        self._socket.settimeout(0.0)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self._reader.feed(data)
        return not data or self._reader.is_complete()

    def _listing(self, *items: int) -> Iterator[tuple[int, bytes]]:
        while True:
            kind, payload = self.next_frame(ANSWER_TIMEOUT_S)
            if kind == Reply.END:
                return
            if kind == Reply.ERROR:
                raise InitRefused(*parse_error(payload))
            if kind not in items:
                raise ProtocolError(f"frame {kind:#x} in a list")
            yield kind, payload


def shell_error(refusal: InitRefused, where: str, terminal: str = "") -> ShellError | NotFound:
    """The error for a caller whose request, perhaps one about ``terminal``, init has refused."""
    if refusal.reason == ErrorCode.UNKNOWN_TERMINAL:
        hint = "waypoint terminal list shows them; terminal new opens one"
        return NotFound("terminal", terminal, hint=hint)
    if refusal.reason == ErrorCode.SHELL_DEAD:
        return ShellDied(f"the shell of {where} has ended")
    return ShellError(f"{where}: {refusal}")


def _connect(root: str | PathLike[str]) -> Socket:
    try:
        socket_fd = _open_socket_file(root)
    except OSError as error:
        raise _not_running() from error
    connection = Socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(f"/proc/self/fd/{socket_fd}")  # also keeps the path below sun_path's 108 bytes
    except (ConnectionRefusedError, TimeoutError) as error:
        connection.close()
        raise _not_running() from error
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(socket_fd)
    return connection


def _open_socket_file(root: str | PathLike[str]) -> int:
    directory_flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    root_fd = os.open(root, directory_flags)
    try:
        control_fd = os.open(CONTROL_DIRECTORY, directory_flags, dir_fd=root_fd)
    finally:
        os.close(root_fd)
    try:
        fd = os.open(CONTROL_SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=control_fd)
    finally:
        os.close(control_fd)
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(CONTROL_SOCKET)
    return fd


def silent() -> Broken:
    """The error for a caller to whom init does not answer."""
    return Broken("its init does not answer", hint=_RESTORE)


def _not_running() -> Broken:
    return Broken(
        "it does not answer: its init has ended, or /.waypoint was removed inside it", hint=_RESTORE
    )
