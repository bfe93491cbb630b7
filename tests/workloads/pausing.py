"""What every workload does: build some state, wait for the checkpoint, check the state.

A workload is a generator: the code before its ``yield`` builds the state, the code after it must find the
state intact. Between the two the process waits for SIGUSR1, which each copy of it gets separately.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["READY", "run"]

READY = Path("/tmp/workload-is-ready")


def run(*workloads: Callable[[], Iterator[None]]) -> None:
    """Run the workload that the command line names."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    chosen = {workload.__name__: workload for workload in workloads}[sys.argv[1]]()
    next(chosen)
    READY.touch()
    signal.sigwait({signal.SIGUSR1})
    if next(chosen, "ended") != "ended":
        raise AssertionError("a workload yields once")
