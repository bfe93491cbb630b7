"""The frame of a workload: build some state, be checkpointed, check yourself.

A workload is a generator: what comes before its ``yield`` builds the state, what comes after it must find the
state whole. Between the two the process waits for SIGUSR1, which every copy of it gets on its own.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["READY", "run"]

READY = Path("/tmp/workload-is-ready")


def run(*workloads: Callable[[], Iterator[None]]) -> None:
    """Run the one that the command line names."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    chosen = {workload.__name__: workload for workload in workloads}[sys.argv[1]]()
    next(chosen)
    READY.touch()
    signal.sigwait({signal.SIGUSR1})
    if next(chosen, "ended") != "ended":
        raise AssertionError("a workload yields once")
