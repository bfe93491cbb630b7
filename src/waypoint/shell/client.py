"""A connection to the init of one branch.

The socket is a file of the branch, which an untrusted agent may have replaced by a link to anywhere: it is
looked up with the branch's directory as root, and only a socket is connected to.
"""

import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from waypoint.errors import Broken, ShellDied, ShellError
from waypoint.kernel.syscalls import open_in_root
from waypoint.shell.profile import SESSION_ENV, ShellProfile
from waypoint.shell.protocol import (
    VERSION,
    ErrorCode,
    FrameReader,
    ProtocolError,
    Reply,
    Request,
    TerminalStatus,
    encode_follow,
    encode_frame,
    encode_open,
    encode_run,
    encode_signal,
    parse_error,
    parse_terminal,
)

__all__ = ["DEFAULT_SIZE", "ConnectionLost", "InitRefused", "ShellClient", "WindowSize", "shell_error"]

CONTROL_SOCKET = "/.waypoint/sock"
ANSWER_TIMEOUT_S = 20.0  # init answers at once; only OPEN waits, for the shell's first prompt
RECEIVE_BYTES = 1 << 18
_RESTORE = "bring a checkpoint back: waypoint restore SESSION[:BRANCH] NAME"

WindowSize = tuple[int, int]
"""Rows and columns."""

DEFAULT_SIZE: WindowSize = (40, 120)


class ConnectionLost(Exception):
    """Init closed the connection: the branch is being saved, was replaced, or ended."""


class InitRefused(Exception):
    """Init answered a request with an error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ShellClient:
    """One connection; a context manager. Requests are answered in order."""

    def __init__(self, root: Path) -> None:
        self._reader = FrameReader()
        self._socket = _connect(root)
        try:
            kind, payload = self.next_frame(ANSWER_TIMEOUT_S)
            version = int.from_bytes(payload[:2], "little")
            if kind is not Reply.HELLO or version != VERSION:
                raise Broken(
                    f"the branch's init speaks protocol {version}, this version of waypoint {VERSION}",
                    hint="use the version of waypoint that made the session",
                )
        except ConnectionLost as error:
            self.close()
            raise Broken("the branch's init closed the connection", hint=_RESTORE) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ShellClient":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def open_terminal(
        self, terminal: str, profile: ShellProfile, *, size: WindowSize, cwd: str, env: Mapping[str, str]
    ) -> None:
        """Start a shell; return when it has shown its first prompt."""
        shell = profile.for_terminal(terminal)
        environment = [f"{name}={value}" for name, value in {**SESSION_ENV, **env}.items()]
        self._ask(
            encode_open(
                terminal,
                rows=size[0],
                columns=size[1],
                uid=0,
                gid=0,
                cwd=cwd,
                rc=shell.rc,
                run_line=shell.run_line,
                argv=shell.argv,
                env=environment,
            )
        )

    def run(self, terminal: str, text: bytes) -> int:
        """Start a command in the terminal's shell and follow it; return the number of its job."""
        return int.from_bytes(self._ask(encode_run(terminal, text), Reply.STARTED)[:4], "little")

    def follow(self, job: int, offset: int) -> None:
        """Ask for the output of a job from ``offset`` on and for its end; frames come by next_frame()."""
        self.send(encode_follow(job, offset))

    def signal(self, terminal: str, signal_number: int) -> None:
        """Send a signal to the foreground processes; the answer comes among the frames."""
        self.send(encode_signal(terminal, signal_number))

    def ping(self) -> None:
        self._ask(encode_frame(Request.PING))

    def quiesce(self) -> None:
        """Make init drop every connection; return when it has dropped this one, the last."""
        self._ask(encode_frame(Request.QUIESCE))
        try:
            self.next_frame(ANSWER_TIMEOUT_S)
        except ConnectionLost:
            return
        raise ProtocolError("a frame after the answer to QUIESCE")

    def terminals(self) -> list[TerminalStatus]:
        self.send(encode_frame(Request.TERMINALS))
        return [parse_terminal(payload) for payload in self._listing(Reply.TERMINAL)]

    def send(self, frame: bytes) -> None:
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        try:
            self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionLost from error

    def next_frame(self, timeout_s: float | None) -> tuple[Reply, bytes]:
        """The next frame. Raises ConnectionLost, or TimeoutError after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            frame = self._reader.next_frame()
            if frame is not None:
                return frame
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            else:
                self._socket.settimeout(None)
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except ConnectionResetError as error:
                raise ConnectionLost from error
            if not data:
                raise ConnectionLost
            self._reader.feed(data)

    def _ask(self, frame: bytes, expected: Reply = Reply.OK) -> bytes:
        self.send(frame)
        kind, payload = self.next_frame(ANSWER_TIMEOUT_S)
        if kind is Reply.ERROR:
            raise InitRefused(*parse_error(payload))
        if kind is not expected:
            raise ProtocolError(f"{kind.name} instead of {expected.name}")
        return payload

    def _listing(self, item: Reply) -> Iterator[bytes]:
        while True:
            kind, payload = self.next_frame(ANSWER_TIMEOUT_S)
            if kind is Reply.END:
                return
            if kind is not item:
                raise ProtocolError(f"{kind.name} instead of {item.name}")
            yield payload


def shell_error(refusal: InitRefused, where: str) -> ShellError:
    """What the caller is told when init refuses a command."""
    if refusal.code is ErrorCode.SHELL_DEAD:
        return ShellDied(f"the shell of {where} has ended")
    return ShellError(f"{where}: {refusal}")


def _connect(root: Path) -> socket.socket:
    try:
        root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _not_running() from error
    try:
        socket_fd = open_in_root(root_fd, CONTROL_SOCKET, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        raise _not_running() from error
    finally:
        os.close(root_fd)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not stat.S_ISSOCK(os.fstat(socket_fd).st_mode):
            raise _not_running()
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


def _not_running() -> Broken:
    return Broken("it does not answer: its init has ended", hint=_RESTORE)
