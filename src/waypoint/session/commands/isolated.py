"""Run a command next to the shells of a branch, in a fresh process that changes nothing in them.

Its two outputs are kept apart, its input comes from the caller, and any number may run at once.
"""

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from waypoint.errors import Broken, NotFound, ShellError, UsageError
from waypoint.log import Timeline
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import (
    CommandResult,
    NoLimits,
    checked_text,
    checked_timeout,
    watch_limits,
)
from waypoint.session.commands.following import Follower, Sink
from waypoint.session.commands.limits_reached import LimitWatch
from waypoint.session.creation.users import find_user, session_user
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient
from waypoint.shell.profile import SESSION_ENV, UNATTENDED_ENV
from waypoint.shell.protocol import ErrorCode, encode_spawn, encode_write
from waypoint.store.live import root_path
from waypoint.store.settings_column import session_settings

__all__ = ["Input", "run_isolated", "start_isolated"]

Input = bytes | IO[bytes] | io.FileIO | None
"""What a command reads: bytes, a file that is read as the command reads, or nothing at all."""

_CHUNK_BYTES = 1 << 15
_SHELL = "/bin/sh"


def run_isolated(
    address: BranchAddress,
    command: str | Sequence[str],
    *,
    stdin: Input = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    timeout_s: float | None = None,
    on_output: Callable[[bytes], None] | None = None,
    on_errors: Callable[[bytes], None] | None = None,
    output_limit: int | None = None,
) -> CommandResult:
    """Run ``command`` (shell text, or the words of one command) and return when it has ended.

    Raises what run_command() raises; there is no shell here that could die or be busy.
    """
    checked_timeout(timeout_s)
    timeline = Timeline("exec")
    output, errors = Sink(on_output, from_terminal=False), Sink(on_errors, from_terminal=False)
    with timeline.step("start"):
        client, incarnation, job, watch = _start(
            address, command, cwd=cwd, env=env, user=user, with_input=stdin is not None
        )
    feeder = _Feeder(address, incarnation, job, stdin)
    with (
        timeline.step("run"),
        Follower(address, client, incarnation, job, output, errors, limit_bytes=output_limit) as follower,
        feeder,
    ):
        try:
            ended = follower.until_end(timeout_s)
        except BaseException as error:
            follower.abandon()  # nobody takes its output any more
            if isinstance(error, ShellError):
                error.because_of(watch.reached())
            raise
    total_ms = timeline.total_ms()
    address.record("exec", total_ms, timeline.phases_ms)
    return CommandResult(
        exit_code=ended.exit_code,
        output_bytes=output.collected(),
        error_bytes=errors.collected(),
        duration_ms=total_ms,
        phases_ms=timeline.phases_ms,
        limits_reached=watch.reached(),
    )


def start_isolated(
    address: BranchAddress,
    command: str | Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
) -> int:
    """Start ``command`` and do not wait for it; return the number of its job. It has no input."""
    client, _, job, _ = _start(address, command, cwd=cwd, env=env, user=user, is_detached=True)
    client.close()
    return job


def _start(
    address: BranchAddress,
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    with_input: bool = False,
    is_detached: bool = False,
) -> tuple[ShellClient, str, int, LimitWatch | NoLimits]:
    argv = [_SHELL, "-c", command] if isinstance(command, str) else list(command)
    if not argv:
        raise UsageError("no command", hint="text for a shell, or the words of a command")
    for word in (*argv, cwd or "", *(env or {}), *(env or {}).values()):
        checked_text(word)
        if "\0" in word:
            raise UsageError(f"{word!r} has a NUL character", hint="Linux allows none in words and variables")
    for name in env or {}:
        if not name or "=" in name:
            raise UsageError(f"{name!r} is not the name of a variable", hint="NAME=VALUE, NAME without =")
    with address.gate():
        incarnation = address.incarnation()
        watch = watch_limits(address, incarnation)
        root = root_path(address.state_dir, incarnation)
        settings = session_settings(address.catalogue, address.session_id)
        who = session_user(root, settings) if user is None else find_user(root, user)
        variables = {**SESSION_ENV, **UNATTENDED_ENV, **who.env, **settings.env, **(env or {})}
        client = address.connect(incarnation)
        try:
            job = client.start(
                encode_spawn(
                    argv,
                    env=[f"{name}={value}" for name, value in variables.items()],
                    cwd=cwd or address.catalogue.workspace(address.session_id),
                    uid=who.uid,
                    gid=who.gid,
                    groups=who.groups,
                    follow=not is_detached,
                    with_input=with_input,
                    keep=is_detached,
                )
            )
        except InitRefused as refusal:
            client.close()
            error = ShellError(f"{address.where}: {refusal}", hint=_hint(refusal))
            raise error.because_of(watch.reached()) from refusal
        except BaseException:
            client.close()
            raise
    return client, incarnation, job, watch


def _hint(refusal: InitRefused) -> str:
    if refusal.reason == ErrorCode.LIMIT:
        return "wait for one of them: waypoint jobs shows them"
    return "name a program, a directory and a user that the branch has"


class _Feeder:
    """Gives a command its input, on a connection of its own; ends with the command."""

    def __init__(self, address: BranchAddress, incarnation: str, job: int, source: Input) -> None:
        self._address = address
        self._incarnation = incarnation
        self._job = job
        self._read = None if source is None else _reader(source)
        self._lock = threading.Lock()
        self._client: ShellClient | None = None
        self._is_over = False
        self._failure: Exception | None = None

    def __enter__(self) -> None:
        if self._read is not None:
            # Reading the caller's own input can last for ever: it must not keep the process from ending.
            threading.Thread(target=self._feed, args=(self._read,), daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self._is_over = True
            client, self._client = self._client, None
        if client is not None:  # a thread that waits for an answer on it then ends
            client.shutdown()
            client.close()
        if kind is None and self._failure is not None:
            raise self._failure

    def _feed(self, read: Callable[[], bytes]) -> None:
        offset = 0
        data = b"."
        while data:
            try:
                data = read()
            except (OSError, ValueError) as error:  # a directory, a closed file: the command's input ends
                self._failure = error
                data = b""
            if not self._write(encode_write(self._job, offset, data)):
                return
            offset += len(data)

    def _write(self, frame: bytes) -> bool:
        """Hand over one piece; False if nobody wants more. A checkpoint in between makes us send it again."""
        while True:
            try:
                client = self._connection()
                if client is None:
                    return False
                client.ask(frame, timeout_s=None)
            except ConnectionLost:
                self._drop(client)
            except (InitRefused, Broken, NotFound, OSError):  # it takes no more; the follower reports why
                return False
            else:
                return True

    def _connection(self) -> ShellClient | None:
        """The connection, made again if need be; None when the command is over."""
        with self._lock:
            if self._client is None and not self._is_over:
                self._client = self._address.reconnect(self._incarnation)
            return self._client

    def _drop(self, client: ShellClient | None) -> None:
        with self._lock:
            if client is not None and self._client is client:
                client.close()
                self._client = None


def _reader(source: bytes | IO[bytes] | io.FileIO) -> Callable[[], bytes]:
    """Returns the input piece by piece, nothing at its end. A file is read as far as it has something now."""
    file = io.BytesIO(source) if isinstance(source, (bytes, bytearray, memoryview)) else source
    read = getattr(file, "read1", None) or getattr(file, "read", None)
    if read is None:
        raise UsageError(
            f"{type(source).__name__} is not an input", hint="give bytes, or a file opened for reading bytes"
        )

    def next_piece() -> bytes:
        piece = read(_CHUNK_BYTES)
        if not isinstance(piece, bytes):
            raise ValueError("the input is text, not bytes: open the file with 'rb'")
        return piece

    return next_piece
