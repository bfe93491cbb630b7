"""The entry point of the command line.

``exec`` is what agents run all day, so its plain form is tried first, with little imported; everything else
goes through the full grammar.
"""

from __future__ import annotations

import sys

from waypoint.cli.exec import parse_exec, run_exec
from waypoint.config import WAYPOINT

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, *, program: str = WAYPOINT) -> int:
    """Run one command line of ``waypoint`` or ``checkpoint-lite``; return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    request = parse_exec(words, program)
    if request is not None:
        return run_exec(request)
    if words[:1] == ["__complete"]:
        from waypoint.cli.completion import print_candidates

        return print_candidates(words[1:], program=program)
    from waypoint.cli.dispatch import dispatch

    return dispatch(words, program=program)
