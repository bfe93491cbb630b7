"""A process that another one traces, as under a debugger. Both end on SIGUSR1."""

import ctypes
import os
import signal
from collections.abc import Iterator

from workloads.pausing import run

PTRACE_SEIZE = 0x4206  # attach without stopping


def traced() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.pause()
        os._exit(1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, child, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "PTRACE_SEIZE")
    yield
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    run(traced)
