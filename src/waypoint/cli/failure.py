"""Errors as the user meets them: text or JSON, and an exit code."""

from __future__ import annotations

import os
import sys

from waypoint.errors import CommandTimedOut, NotPermitted, ShellDied, WaypointError

__all__ = ["EXIT_INTERRUPTED", "exec_exit_code", "explained", "print_error"]

EXIT_INTERRUPTED = 130
EXIT_TIMED_OUT = 124
EXIT_EXEC_FAILED = 125


def print_error(error: WaypointError, *, as_json: bool) -> None:
    """One error: a document on standard output, or lines for people on standard error."""
    if as_json:
        import json

        document = {"code": error.code, "message": str(error), "hint": error.hint}
        if isinstance(error, (CommandTimedOut, ShellDied)):
            document["output"] = error.output.decode(errors="replace")
        print(json.dumps({"error": document}, indent=2))
        return
    print(f"waypoint: error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def exec_exit_code(error: WaypointError) -> int:
    """Of exec, when not the command failed but we did: the command's own code may be anything else."""
    return EXIT_TIMED_OUT if error.exit_code == EXIT_TIMED_OUT else EXIT_EXEC_FAILED


def explained(error: OSError) -> WaypointError:
    """An error of the system for which no layer below had words."""
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return NotPermitted(what, hint="waypoint needs root: run it with sudo")
    return WaypointError(what, hint="run it again with --verbose to see where this happened")
