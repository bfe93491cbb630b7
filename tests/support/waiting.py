"""Wait until a condition is true: inside a branch, whose shell is busy meanwhile, or on the host. No test guesses."""

import time
from collections.abc import Callable

import pytest

from waypoint import Branch, Session
from waypoint.shell.protocol import encode_kill

__all__ = ["DEADLINE_S", "delay_interrupt_until", "wait_for", "wait_until"]

DEADLINE_S = 30.0


def wait_until(branch: Branch | Session, condition: str) -> None:
    """Run the shell test ``condition`` repeatedly until it is true; CommandTimedOut if it never is."""
    branch.exec(f"until {condition}; do sleep 0.02; done", timeout_s=DEADLINE_S)


def wait_for(condition: Callable[[], bool]) -> None:
    """Check ``condition`` repeatedly until it is true; fail if it never is."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def delay_interrupt_until(monkeypatch: pytest.MonkeyPatch, has_begun: Callable[[], bool]) -> None:
    """Delay the interrupt of the next command that times out until it ``has_begun``, however slow the machine."""
    encoder = "waypoint.session.commands.following.encode_kill"

    def wait_and_encode(job: int, number: int) -> bytes:
        monkeypatch.setattr(encoder, encode_kill)
        wait_for(has_begun)
        return encode_kill(job, number)

    monkeypatch.setattr(encoder, wait_and_encode)
