"""Commands that run elsewhere, in a container or a machine, through a client on this host that merely waits for them.

A shell there first prints its process id: so it is certain whether the command began at all, and it can be ended where
it runs when its time is up. Killing the client does not do that.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from statefork.backend import Command
from statefork.errors import BackendFailed, CommandTimedOut
from waypoint.kernel.processes.programs import Popen, TimeoutExpired

__all__ = ["KILL_TIMEOUT_S", "ClientResult", "kill_words", "run_through_client", "reporting_pid"]

KILL_TIMEOUT_S = 30.0
BEGIN_TIMEOUT_S = 30.0  # for a command whose time is up before the client has started it
BEGIN_POLL_S = 0.02  # that its output file grows is the client's only sign

_SAY_PID = "echo $$; "
_RUN_LINE = _SAY_PID + 'command -v bash >/dev/null 2>&1 && exec bash -c "$1"; exec sh -c "$1"'
_RUN_WORDS = _SAY_PID + 'exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResult:
    """How the client ended, and what the command wrote. If it never began, the client's errors say why."""

    has_begun: bool
    status: int
    output: str
    errors: str


def reporting_pid(command: Command) -> tuple[str, ...]:
    """The words to run there: a shell that prints its pid and becomes the command. It should lead its own group."""
    if isinstance(command, str):
        return ("sh", "-c", _RUN_LINE, "sh", command)
    return ("sh", "-c", _RUN_WORDS, "sh", *command)


def kill_words(pid: int) -> tuple[str, ...]:
    """The words that end such a command there, with all of its group."""
    return ("sh", "-c", f"kill -9 -{pid}")


def run_through_client(
    start: Callable[[IO[bytes], IO[bytes]], "Popen[bytes]"],
    end: Callable[[int], object],
    timeout_s: float | None,
) -> ClientResult:
    """Wait for a command. ``start`` starts the client with its two outputs, ``end`` ends the command of that pid there.

    Raises CommandTimedOut when it was ended.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        client = start(out, err)
        try:
            status = client.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except TimeoutExpired:
            raise CommandTimedOut(timeout_s or 0.0, _end(client, out, end)) from None
        except BaseException:
            _end(client, out, end)
            raise
        pid, output = _split(_content(out))
        return ClientResult(has_begun=pid is not None, status=status, output=output, errors=_content(err))


def _end(client: "Popen[bytes]", out: IO[bytes], end: Callable[[int], object]) -> str:
    """End a command where it runs, then the client; return what it has written."""
    _wait_until(lambda: client.poll() is not None or _split(_content(out))[0] is not None)
    pid, _ = _split(_content(out))
    if pid is not None:
        with suppress(BackendFailed):  # it, or all that it runs in, has just ended by itself
            end(pid)
    with suppress(ProcessLookupError):
        os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    return _split(_content(out))[1]


def _content(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def _split(output: str) -> tuple[int | None, str]:
    """The process id on the first line, and the rest; no id if the shell has not printed one."""
    first, newline, rest = output.partition("\n")
    return (int(first), rest) if newline and first.isascii() and first.isdigit() else (None, output)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BEGIN_TIMEOUT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(BEGIN_POLL_S)
