"""Errors as the user gets them: text or JSON, and an exit code."""

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

__all__ = ["guarded", "limits_document", "print_error", "print_older_error", "report_error"]

EXIT_INTERRUPTED = 130
EXIT_TIMED_OUT = 124
EXIT_EXEC_FAILED = 125
_OLDER_ERRORS = {
    "cp": "Error copying",
    "build": "Error building sandbox image",
    "exec": "Error executing command",
    "fork": "Error creating fork",
}
_BUILD_FAILED = "Error building sandbox image: "  # such an error has this text already
_OLDER_TO_STDERR = ("cp", "build", "info")


def guarded(
    run: Callable[[], int],
    *,
    verb: str,
    is_older: bool = False,
    as_json: bool = False,
    verbose: bool = False,
) -> int:
    """Run a verb; print the error that it or the system raises, and return the exit code.

    ``is_older``: with the messages and the exit codes of older command lines.
    """
    try:
        return run()
    except WaypointError as error:
        failure = error
    except KeyboardInterrupt:
        print("waypoint: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # nobody reads our output any more: print nothing else
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    except OSError as error:
        if verbose:
            raise
        failure = _explain_os_error(error)
    return report_error(failure, verb=verb, is_older=is_older, as_json=as_json)


def report_error(error: WaypointError, *, verb: str, is_older: bool, as_json: bool = False) -> int:
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
    """Print an error in the older form, mostly on standard output. The hint is new, and goes to standard error."""
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
        print(error.hint)  # what holds the session goes to standard output too
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
    """The exit code when exec itself failed, not the command: the command's own code may be anything else."""
    return EXIT_TIMED_OUT if error.exit_code == EXIT_TIMED_OUT else EXIT_EXEC_FAILED


def _explain_os_error(error: OSError) -> WaypointError:
    """The error to report for an OSError that no layer below has explained."""
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return NotPermitted(what, hint="waypoint needs root: run it with sudo")
    return WaypointError(what, hint="run it again with --verbose to see where this happened")
