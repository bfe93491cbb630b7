"""Start programs: the only module that imports subprocess.

Programs get an argument list (never a shell string), a clean environment, a time limit, and no standard
input unless the caller gives one. Output goes to temporary files, not pipes: a daemon that a program leaves behind may
keep our descriptor, and a pipe would then never end.
"""

import logging
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO

from waypoint.errors import ToolFailed, ToolMissing, ToolTimedOut

__all__ = [
    "CLEAN_ENV",
    "DEVNULL",
    "PIPE",
    "Finished",
    "Popen",
    "TimeoutExpired",
    "await_end",
    "detach",
    "run_tool",
    "spawn",
]

log = logging.getLogger(__name__)

CLEAN_ENV: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a program printed that ended with an accepted status."""

    status: int
    stdout: str
    stderr: str


def run_tool(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    accept: Sequence[int] = (0,),
    pass_fds: Sequence[int] = (),
    stdin: IO[bytes] | int = DEVNULL,
    stdout: IO[bytes] | None = None,
) -> Finished:
    """Run ``command`` to its end. With ``stdout`` its output goes to that file, and is not in the result.

    Raises ToolMissing, ToolTimedOut (after killing its process group) or, for a status not in
    ``accept``, ToolFailed with what it printed to standard error.
    """
    with open(os.memfd_create("out"), "r+b") as out, open(os.memfd_create("err"), "r+b") as err:
        process = spawn(command, stdin=stdin, stdout=stdout or out, stderr=err, env=env, pass_fds=pass_fds)
        try:
            status = await_end(process, timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ToolTimedOut(command, timeout_s) from error
            raise
        finished = Finished(status=status, stdout=_text(out), stderr=_text(err))
    if status not in accept:
        raise ToolFailed(command, status, finished.stderr)
    return finished


def await_end(process: "Popen[bytes]", timeout_s: float) -> int:
    """Wait for the end of a program; return its status. Raises TimeoutExpired.

    The standard library's wait with a time limit sleeps in steps, and so finds the end of a fast program late.
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise TimeoutExpired(process.args, timeout_s)
    finally:
        os.close(pidfd)
    return process.wait()


def spawn(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: IO[bytes] | int = DEVNULL,
) -> "subprocess.Popen[bytes]":
    """Start ``command`` in a session of its own and return without waiting for it."""
    log.debug("run: %s", shlex.join(command))
    try:
        return subprocess.Popen(
            command,
            env=dict(CLEAN_ENV if env is None else env),
            start_new_session=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
        )
    except FileNotFoundError as error:
        raise ToolMissing(command[0]) from error


def detach(command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
    """Start ``command`` as nobody's child: we need not wait for its end, and it holds nothing of ours."""
    spawn(("setsid", "--fork", *command), stdout=DEVNULL, stderr=DEVNULL, pass_fds=pass_fds).wait()


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")
