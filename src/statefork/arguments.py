"""Check what callers pass, alike for every backend: what makes no sense is refused before anything is done."""

import posixpath
from collections.abc import Sequence

from statefork.errors import WrongUse
from waypoint.errors import InvalidName
from waypoint.names import parse_name

__all__ = [
    "as_number",
    "check_command",
    "check_fork",
    "check_path",
    "check_snapshot_id",
    "check_timeout",
]


def check_command(command: object) -> None:
    """Accept a line for the shell, or the words of one command."""
    words: Sequence[object] = ()
    if isinstance(command, str):
        words = (command,)
    elif isinstance(command, Sequence):
        words = command
    if not words or not all(isinstance(word, str) for word in words):
        raise WrongUse(f"{command!r} is not a command", hint="a line for the shell, or a list of words")
    if any("\0" in str(word) for word in words):
        raise WrongUse("a command cannot hold a zero byte", hint="write the data to a file and copy it in")


def check_timeout(timeout_s: object) -> None:
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
        raise WrongUse(f"a timeout of {timeout_s!r} s", hint="more than 0, or None to wait for ever")


def check_path(path: object) -> None:
    """Accept an absolute path in the environment, but not its root, which cannot be replaced."""
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise WrongUse(f"{path!r} is not an absolute path", hint="paths in the environment begin with /")
    if posixpath.normpath(path).strip("/") == "":
        raise WrongUse("the root of the environment cannot be copied", hint="name a directory below it")


def check_fork(n: object, ids: Sequence[str] | None) -> None:
    """Accept a number of new branches, or their ids."""
    if ids is not None:
        _check_branch_ids(ids)
    if not isinstance(n, int) or (n if ids is None else len(ids)) < 1:
        raise WrongUse("a fork makes at least one branch", hint="n=2, or ids=['a', 'b']")
    if ids is not None and n not in (1, len(ids)):
        raise WrongUse(f"{n} branches but {len(ids)} ids")


def _check_branch_ids(ids: object) -> None:
    if (
        isinstance(ids, str)
        or not isinstance(ids, Sequence)
        or not all(isinstance(name, str) for name in ids)
    ):
        raise WrongUse(f"{ids!r} is not a list of branch ids", hint="ids=['a', 'b']")
    try:
        for name in ids:
            parse_name("branch", name)
    except InvalidName as error:
        raise WrongUse(str(error), hint=error.hint) from error


def check_snapshot_id(snapshot_id: str) -> str:
    try:
        return parse_name("checkpoint", snapshot_id)
    except InvalidName as error:
        raise WrongUse(f"{snapshot_id!r} cannot be the id of a snapshot", hint=error.hint) from error


def as_number(name: str, value: object) -> int:
    """The value of an option that is a whole number; the command line gives it as text."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    raise WrongUse(f"{name}={value!r} is not a whole number", hint=f"{name}=1234")
