"""Errors as the user meets them: text or JSON, and an exit code."""

from __future__ import annotations

import os
import sys

from waypoint.errors import (
    BadSyntax,
    Busy,
    CommandTimedOut,
    CommandTooLong,
    EngineError,
    ForkIncomplete,
    NotFound,
    NotPermitted,
    OutputLimitExceeded,
    ShellDied,
    ShellError,
    WaypointError,
)

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from waypoint.errors import LimitReached

__all__ = ["guarded", "limits_document", "print_error", "print_older_error", "tell"]

EXIT_INTERRUPTED = 130
EXIT_TIMED_OUT = 124
EXIT_EXEC_FAILED = 125
_OLDER_ERRORS = {
    "cp": "Error copying",
    "build": "Error building sandbox image",
    "exec": "Error executing command",
    "fork": "Error creating fork",
}
_BUILD_FAILED = "Error building sandbox image: "  # our own words for it are those of the originals
_OLDER_TO_STDERR = ("cp", "build", "info")


def guarded(
    run: Callable[[], int],
    *,
    verb: str,
    is_older: bool = False,
    as_json: bool = False,
    verbose: bool = False,
) -> int:
    """Run a verb; whatever it raises on purpose, or the system does, becomes words and an exit code.

    ``is_older``: in the words and with the codes of the originals.
    """
    try:
        return run()
    except WaypointError as error:
        failure = error
    except KeyboardInterrupt:
        print("waypoint: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # our reader has gone: nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    except OSError as error:
        if verbose:
            raise
        failure = _explained(error)
    return tell(failure, verb=verb, is_older=is_older, as_json=as_json)


def tell(error: WaypointError, *, verb: str, is_older: bool, as_json: bool = False) -> int:
    """Print one error of a verb; return the exit code that goes with it."""
    if is_older and not as_json:
        print_older_error(error, verb)
    else:
        print_error(error, as_json=as_json)
    if is_older:
        return _older_exit_code(error, verb)
    return _exec_exit_code(error) if verb == "exec" else error.exit_code


def print_error(error: WaypointError, *, as_json: bool) -> None:
    """One error: a document on standard output, or lines for people on standard error."""
    if as_json:
        import json

        document: dict[str, object] = {"code": error.code, "message": str(error), "hint": error.hint}
        if isinstance(error, (CommandTimedOut, OutputLimitExceeded, ShellDied)):
            document["output"] = error.output.decode(errors="replace")
        if isinstance(error, ShellError) and error.limits_reached:
            document["limits_reached"] = limits_document(error.limits_reached)
        print(json.dumps({"error": document}, indent=2))
        return
    print(f"waypoint: error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def print_older_error(error: WaypointError, verb: str) -> None:
    """As the originals say it: mostly to standard output. The next move is ours, and goes to standard error."""
    stream = sys.stderr if verb in _OLDER_TO_STDERR else sys.stdout
    if isinstance(error, BadSyntax):
        text, stream = f"waypoint exec: {error}", sys.stderr
    elif isinstance(error, CommandTimedOut):
        text, stream = "Error: command timed out", sys.stderr
    elif isinstance(error, NotFound) and error.kind == "session":
        text = f"Error loading session: {error}"
    else:
        text = f"{_OLDER_ERRORS.get(verb, 'Error')}: {str(error).removeprefix(_BUILD_FAILED)}"
    if isinstance(error, ForkIncomplete):
        text = "\n".join(
            f"{_OLDER_ERRORS['fork']}: {name}: {reason}" for name, reason in error.errors.items()
        )
    print(text, file=stream, flush=True)
    if error.hint and verb == "cleanup" and isinstance(error, (Busy, EngineError)):
        print(error.hint)  # what holds the session is for standard output too
    elif error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def _older_exit_code(error: WaypointError, verb: str) -> int:
    if isinstance(error, BadSyntax):
        return error.exit_code
    if isinstance(error, (OutputLimitExceeded, CommandTooLong)):
        return EXIT_EXEC_FAILED
    return EXIT_TIMED_OUT if error.exit_code == EXIT_TIMED_OUT else 1


def limits_document(limits: Sequence[LimitReached]) -> list[dict[str, object]]:
    """For ``--json``: the limits that were reached."""
    return [
        {"limit": limit.name, "maximum": limit.maximum, "times": limit.times, "message": limit.message}
        for limit in limits
    ]


def _exec_exit_code(error: WaypointError) -> int:
    """Of exec, when not the command failed but we did: the command's own code may be anything else."""
    return EXIT_TIMED_OUT if error.exit_code == EXIT_TIMED_OUT else EXIT_EXEC_FAILED


def _explained(error: OSError) -> WaypointError:
    """An error of the system for which no layer below had words."""
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return NotPermitted(what, hint="waypoint needs root: run it with sudo")
    return WaypointError(what, hint="run it again with --verbose to see where this happened")
