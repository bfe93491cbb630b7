"""The two ways back to a saved point: restore it, or fork it."""

from waypoint import Branch, Session

__all__ = ["return_after"]


def return_after(session: Session, diverge: str) -> list[Branch]:
    """Save the session, let it ``diverge``, and come back: ``main`` restored, and a fork beside it."""
    saved = session.snapshot()
    session.exec(diverge)
    session.restore(saved)
    return [session.main, *session.fork(saved)]
