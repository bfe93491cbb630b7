"""Wait inside a branch until something is so. The shell is busy meanwhile; the test is not guessing."""

from waypoint import Branch, Session

__all__ = ["DEADLINE_S", "wait_until"]

DEADLINE_S = 30.0


def wait_until(branch: Branch | Session, condition: str) -> None:
    """Run the shell test ``condition`` again and again until it is true; CommandTimedOut if it never is."""
    branch.exec(f"until {condition}; do sleep 0.02; done", timeout_s=DEADLINE_S)
