"""``SESSION[:BRANCH]``, as every verb writes it."""

from dataclasses import dataclass

from waypoint.names import MAIN, parse_name
from waypoint.session.session import Branch
from waypoint.session.waypoint import Waypoint

__all__ = ["Target", "find_branch", "parse_target"]


@dataclass(frozen=True, slots=True)
class Target:
    session: str
    branch: str | None


def parse_target(text: str) -> Target:
    session, colon, branch = text.partition(":")
    parse_name("session", session)
    return Target(session, parse_name("branch", branch) if colon else None)


def find_branch(waypoint: Waypoint, text: str) -> Branch:
    """The branch that ``SESSION[:BRANCH]`` means; ``main`` if none is said."""
    target = parse_target(text)
    return waypoint.session(target.session).branch(target.branch or MAIN)
