"""Run a command beside the shells of a branch: a fresh process that changes nothing in them.

Its two outputs are apart, its input comes from the caller, and any number may run at once.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from waypoint.errors import Broken, NotFound, ShellError
from waypoint.log import Timeline
from waypoint.session.command import CommandResult, checked_text, checked_timeout
from waypoint.session.following import Follower, Sink
from waypoint.session.place import Place
from waypoint.session.users import ROOT, User, find_user
from waypoint.shell.client import ConnectionLost, InitRefused, ShellClient
from waypoint.shell.profile import SESSION_ENV, UNATTENDED_ENV
from waypoint.shell.protocol import ErrorCode, encode_spawn, encode_write
from waypoint.store.live import root_path

__all__ = ["Input", "run_isolated", "start_isolated"]

Input = bytes | IO[bytes] | None
"""What a command reads: bytes, a file that is read as the command reads, or nothing at all."""

_CHUNK_BYTES = 1 << 15
_SHELL = "/bin/sh"


def run_isolated(
    place: Place,
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
        client, incarnation, job = _start(
            place, command, cwd=cwd, env=env, user=user, with_input=stdin is not None
        )
    feeder = _Feeder(place, incarnation, job, stdin)
    with (
        timeline.step("run"),
        Follower(place, client, incarnation, job, output, errors, limit_bytes=output_limit) as follower,
        feeder,
    ):
        ended = follower.until_end(timeout_s)
    total_ms = timeline.total_ms()
    place.catalogue.record("exec", place.session_id, place.branch, total_ms, timeline.phases_ms)
    return CommandResult(
        exit_code=ended.exit_code,
        output_bytes=output.collected(),
        error_bytes=errors.collected(),
        duration_ms=total_ms,
        phases_ms=timeline.phases_ms,
    )


def start_isolated(
    place: Place,
    command: str | Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
) -> int:
    """Start ``command`` and leave it to itself; return the number of its job. It has no input."""
    client, _, job = _start(place, command, cwd=cwd, env=env, user=user, is_detached=True)
    client.close()
    return job


def _start(
    place: Place,
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    with_input: bool = False,
    is_detached: bool = False,
) -> tuple[ShellClient, str, int]:
    argv = [_SHELL, "-c", command] if isinstance(command, str) else list(command)
    for word in argv:
        checked_text(word)
    with place.gate():
        incarnation = place.incarnation()
        who = ROOT if user is None else find_user(root_path(place.state_dir, incarnation), user)
        client = place.connect(incarnation)
        try:
            job = client.start(
                encode_spawn(
                    argv,
                    env=[f"{name}={value}" for name, value in _environment(who, env).items()],
                    cwd=cwd or place.catalogue.workspace(place.session_id),
                    uid=who.uid,
                    gid=who.gid,
                    follow=not is_detached,
                    with_input=with_input,
                    keep=is_detached,
                )
            )
        except InitRefused as refusal:
            client.close()
            raise ShellError(f"{place.where}: {refusal}", hint=_hint(refusal)) from refusal
        except BaseException:
            client.close()
            raise
    return client, incarnation, job


def _environment(user: User, env: Mapping[str, str] | None) -> dict[str, str]:
    own = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    return {**SESSION_ENV, **UNATTENDED_ENV, **own, **(env or {})}


def _hint(refusal: InitRefused) -> str:
    if refusal.reason == ErrorCode.LIMIT:
        return "wait for one of them: waypoint jobs shows them"
    return "name a program, a directory and a user that the branch has"


class _Feeder:
    """Gives a command its input, on a connection of its own; ends with the command."""

    def __init__(self, place: Place, incarnation: str, job: int, source: Input) -> None:
        self._place = place
        self._incarnation = incarnation
        self._job = job
        self._chunks = None if source is None else _chunks(source)
        self._client: ShellClient | None = None
        self._over = threading.Event()

    def __enter__(self) -> None:
        if self._chunks is not None:
            # Reading the caller's own input can last for ever: it must not keep the process from ending.
            threading.Thread(target=self._feed, args=(self._chunks,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._let_go()  # also under a thread that waits for an answer; it then ends

    def _feed(self, chunks: Iterator[bytes]) -> None:
        offset = 0
        try:
            for chunk in chunks:
                if not self._write(offset, chunk):
                    return
                offset += len(chunk)
            self._write(offset, b"")
        finally:
            self._let_go()

    def _write(self, offset: int, data: bytes) -> bool:
        """Hand over one piece; False if nobody wants more. A checkpoint in between makes us say it again."""
        while not self._over.is_set():
            try:
                if self._client is None:
                    self._client = self._place.reconnect(self._incarnation)
                self._client.ask(encode_write(self._job, offset, data), timeout_s=None)
            except InitRefused:  # it has ended, or closed its input
                return False
            except ConnectionLost:
                self._let_go()
            except (Broken, NotFound, OSError):  # the follower meets the same and says it
                return False
            else:
                return True
        return False

    def _let_go(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.shutdown()
            client.close()


def _chunks(source: bytes | IO[bytes]) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for at in range(0, len(source), _CHUNK_BYTES):
            yield source[at : at + _CHUNK_BYTES]
        return
    while chunk := os.read(source.fileno(), _CHUNK_BYTES):
        yield chunk
