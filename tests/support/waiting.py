"""Wait until something is so: inside a branch, whose shell is busy meanwhile, or on the host. No test guesses."""

import time
from collections.abc import Callable

from waypoint import Branch, Session

__all__ = ["DEADLINE_S", "wait_for", "wait_until"]

DEADLINE_S = 30.0


def wait_until(branch: Branch | Session, condition: str) -> None:
    """Run the shell test ``condition`` again and again until it is true; CommandTimedOut if it never is."""
    branch.exec(f"until {condition}; do sleep 0.02; done", timeout_s=DEADLINE_S)


def wait_for(condition: Callable[[], bool]) -> None:
    """Ask again and again until it is true; fail if it never is."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
