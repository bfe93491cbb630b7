"""Names of sessions, branches, checkpoints and terminals: which are allowed, and which are special.

Every command line imports this module and those below it, so they import next to nothing themselves
(docs/adr/0003-command-line-starts-fast.md).
"""

from waypoint.errors import InvalidName

__all__ = ["MAIN", "parse_name"]

MAIN = "main"
"""The first branch of a session, and the first terminal of a branch."""

_LENGTH_MAX = 64
_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LATER = _FIRST | frozenset("._-")
_RESERVED = frozenset({("checkpoint", "current")})


def parse_name(kind: str, text: str) -> str:
    """``text`` if it may be the name of a ``kind``; the check comes before any path is built from it."""
    is_name = 0 < len(text) <= _LENGTH_MAX and text[0] in _FIRST and _LATER.issuperset(text)
    if not is_name:
        raise InvalidName(kind, text)
    if (kind, text) in _RESERVED:
        raise InvalidName(kind, text, hint="it is reserved: choose another")
    return text
