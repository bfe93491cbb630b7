"""Wait until something is so: inside a branch, whose shell is busy meanwhile, or on the host. No test guesses."""

import time
from collections.abc import Callable

import pytest

from waypoint import Branch, Session
from waypoint.shell.protocol import encode_kill

__all__ = ["DEADLINE_S", "spare_until", "wait_for", "wait_until"]

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


def spare_until(monkeypatch: pytest.MonkeyPatch, has_begun: Callable[[], bool]) -> None:
    """Let the next command that is out of time be interrupted no sooner than it ``has_begun``, on any machine."""
    encoder = "waypoint.session.commands.following.encode_kill"

    def wait_and_encode(job: int, number: int) -> bytes:
        monkeypatch.setattr(encoder, encode_kill)
        wait_for(has_begun)
        return encode_kill(job, number)

    monkeypatch.setattr(encoder, wait_and_encode)
