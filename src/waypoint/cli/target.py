"""Operands that many verbs have in common: ``SESSION[:BRANCH]`` and sizes of terminals."""

import re
from dataclasses import dataclass

from waypoint.errors import UsageError
from waypoint.names import MAIN, parse_name
from waypoint.session.session import Branch
from waypoint.session.waypoint import Waypoint
from waypoint.shell.terminal import WindowSize

__all__ = ["Target", "find_branch", "parse_size", "parse_target"]

_SIZE = re.compile(r"(\d{1,4})x(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Target:
    session: str
    branch: str | None


def parse_target(text: str) -> Target:
    session, colon, branch = text.partition(":")
    parse_name("session", session)
    return Target(session, parse_name("branch", branch) if colon else None)


def find_branch(waypoint: Waypoint, text: str) -> Branch:
    """The branch that ``SESSION[:BRANCH]`` means; ``main`` if no branch is given."""
    target = parse_target(text)
    return waypoint.session(target.session).branch(target.branch or MAIN)


def parse_size(text: str) -> WindowSize:
    """Rows and columns from ``COLUMNSxROWS``, as people write it."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="columns x rows, such as 120x40")
    return int(match[2]), int(match[1])
