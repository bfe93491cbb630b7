"""Run a program inside a machine, outside its shell, with an input and an output: what copying files needs."""

from collections.abc import Callable
from typing import IO

from waypoint.shell.client import ShellClient
from waypoint.shell.profile import SESSION_ENV
from waypoint.shell.protocol import (
    Ended,
    ProtocolError,
    Reply,
    encode_spawn,
    encode_write,
    parse_ended,
    parse_output,
)

__all__ = ["run_program"]

PIECE_BYTES = 60 << 10  # init takes 64 KiB at a time
ERROR_BYTES_MAX = 4096  # more is not read by anyone
QUIET_TIMEOUT_S = 120.0  # copying makes progress, or something is wrong


def run_program(
    connect: Callable[[], ShellClient],
    command: tuple[str, ...],
    source: IO[bytes] | None,
    output: IO[bytes],
) -> tuple[int, str]:
    """Run ``command``; return its exit status and its errors. Raises WaypointError, TimeoutError, OSError."""
    with connect() as client:
        return _Program(client, output).run(command, source)


class _Program:
    def __init__(self, client: ShellClient, output: IO[bytes]) -> None:
        self._client = client
        self._output = output
        self._errors = b""
        self._ended: Ended | None = None

    def run(self, command: tuple[str, ...], source: IO[bytes] | None) -> tuple[int, str]:
        spawn = encode_spawn(
            command,
            env=[f"{name}={value}" for name, value in SESSION_ENV.items()],
            cwd="/",
            uid=0,
            gid=0,
            follow=True,
            with_input=source is not None,
            keep=False,
        )
        job = self._client.start(spawn)
        if source is not None:
            self._feed(job, source)
        while self._ended is None:
            self._take()
        return self._ended.exit_code, self._errors.decode(errors="replace").strip()

    def _feed(self, job: int, source: IO[bytes]) -> None:
        offset = 0
        data = b"."
        while data and self._ended is None:
            data = source.read(PIECE_BYTES)
            self._client.send(encode_write(job, offset, data))
            offset += len(data)
            while (kind := self._take()) != Reply.OK:
                if kind == Reply.ERROR:  # it reads no more; its exit status says why
                    return

    def _take(self) -> int:
        kind, payload = self._client.next_frame(QUIET_TIMEOUT_S)
        if kind == Reply.OUTPUT:
            self._output.write(parse_output(payload)[1])
        elif kind == Reply.ERROR_OUTPUT:
            self._errors = (self._errors + parse_output(payload)[1])[:ERROR_BYTES_MAX]
        elif kind == Reply.ENDED:
            self._ended = parse_ended(payload)
        elif kind == Reply.LOST:
            raise ProtocolError("output of a program that was followed is lost")
        elif kind not in (Reply.OK, Reply.ERROR):
            raise ProtocolError(f"frame {kind:#x} while a program is followed")
        return kind
