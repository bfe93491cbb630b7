"""Errors as the user meets them: text or JSON, and an exit code."""

from __future__ import annotations

import os
import sys

from waypoint.errors import CommandTimedOut, NotPermitted, OutputLimitExceeded, ShellDied, WaypointError

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["guarded", "print_error"]

EXIT_INTERRUPTED = 130
EXIT_TIMED_OUT = 124
EXIT_EXEC_FAILED = 125


def guarded(verb: Callable[[], int], *, is_exec: bool, as_json: bool = False, verbose: bool = False) -> int:
    """Run a verb; whatever it raises on purpose, or the system does, becomes words and an exit code."""
    try:
        return verb()
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
    print_error(failure, as_json=as_json)
    return _exec_exit_code(failure) if is_exec else failure.exit_code


def print_error(error: WaypointError, *, as_json: bool) -> None:
    """One error: a document on standard output, or lines for people on standard error."""
    if as_json:
        import json

        document = {"code": error.code, "message": str(error), "hint": error.hint}
        if isinstance(error, (CommandTimedOut, OutputLimitExceeded, ShellDied)):
            document["output"] = error.output.decode(errors="replace")
        print(json.dumps({"error": document}, indent=2))
        return
    print(f"waypoint: error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def _exec_exit_code(error: WaypointError) -> int:
    """Of exec, when not the command failed but we did: the command's own code may be anything else."""
    return EXIT_TIMED_OUT if error.exit_code == EXIT_TIMED_OUT else EXIT_EXEC_FAILED


def _explained(error: OSError) -> WaypointError:
    """An error of the system for which no layer below had words."""
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return NotPermitted(what, hint="waypoint needs root: run it with sudo")
    return WaypointError(what, hint="run it again with --verbose to see where this happened")
