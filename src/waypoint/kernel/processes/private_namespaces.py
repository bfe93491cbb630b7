"""Run a program in mount and pid namespaces of its own, which end with it and with us.

Nobody else sees what it mounts. When it ends or is given up, or when *we* are killed, the kernel kills every process
it has started and removes every mount: an interrupted build leaves only files.
"""

import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from waypoint.errors import ToolFailed, ToolTimedOut
from waypoint.kernel.processes.programs import Finished, Popen, spawn

__all__ = ["run_private"]

# If the process that starts it dies, `unshare` is killed, and with it the first process of the namespace.
_ENTER = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
_TAIL_BYTES = 1 << 16


def run_private(
    script: str,
    words: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    hold: Sequence[int] = (),
    on_output: Callable[[bytes], None] | None = None,
    collect: bool = False,
) -> Finished:
    """Run a script with ``sh``, with ``words`` as its arguments, and return when all it started has ended.

    ``on_output`` gets what is written to standard output and error as it comes; with ``collect`` standard
    output is kept apart and returned. ``hold`` are descriptors of locks that all its processes keep.
    Raises ToolFailed, with the end of what was written, or ToolTimedOut.
    """
    command = (*_ENTER, "sh", "-euc", script, *words)
    with tempfile.TemporaryFile() as collected:
        read_end, write_end = os.pipe()
        try:
            process = spawn(
                command,
                stdout=collected.fileno() if collect else write_end,
                stderr=write_end,
                env=env,
                pass_fds=hold,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        try:
            tail = _follow(process, read_end, time.monotonic() + timeout_s, on_output)
        except TimeoutError as error:
            raise ToolTimedOut((_name(words),), timeout_s) from error
        finally:
            os.close(read_end)
        collected.seek(0)
        finished = Finished(
            status=process.returncode, stdout=collected.read().decode(errors="replace"), stderr=tail
        )
    if finished.status != 0:
        raise ToolFailed((_name(words),), finished.status, tail)
    return finished


def _follow(
    process: "Popen[bytes]", pipe: int, deadline: float, on_output: Callable[[bytes], None] | None
) -> str:
    """Pass output on until no process can write any more; return the last part of it."""
    tail = bytearray()
    try:
        while True:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            data = os.read(pipe, 1 << 16)
            if not data:
                break
            if on_output is not None:
                on_output(data)
            tail += data
            del tail[:-_TAIL_BYTES]
        process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while os.read(pipe, 1 << 16):  # until the last process in the namespace has ended
            continue
        raise
    return tail.decode(errors="replace")


def _name(words: Sequence[str]) -> str:
    return os.path.basename(words[0]) if words else "sh"
