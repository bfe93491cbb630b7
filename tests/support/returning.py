"""The two ways to return to a checkpoint: restore it, or fork it."""

from waypoint import Branch, Session

__all__ = ["return_after"]


def return_after(session: Session, diverge: str) -> list[Branch]:
    """Save the session, run ``diverge`` in it, and return to the checkpoint: ``main`` restored, and a fork."""
    saved = session.snapshot()
    session.exec(diverge)
    session.restore(saved)
    return [session.main, *session.fork(saved)]
