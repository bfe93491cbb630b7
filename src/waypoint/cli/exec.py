"""The verb exec: a command in the shell of a branch."""

import argparse
import shlex
import sys

from waypoint.cli.answer import Answer
from waypoint.cli.target import find_branch
from waypoint.errors import CommandTimedOut, ShellDied, UsageError
from waypoint.session.waypoint import Waypoint

__all__ = ["exec_"]


def exec_(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    """Print the command's output as it comes and end with its exit code.

    One word after ``--`` is shell text; several are the words of one command and are kept apart.
    """
    if not options.command:
        raise UsageError("no command", hint="waypoint exec SESSION -- COMMAND")
    text = options.command[0] if len(options.command) == 1 else shlex.join(options.command)
    branch = find_branch(waypoint, options.target)
    if options.json:
        result = branch.exec(text, timeout_s=options.timeout, wait=options.wait)
        document: dict[str, object] = {
            "exit_code": result.exit_code,
            "output": result.output,
            "duration_ms": result.duration_ms,
        }
        return Answer(text="", document=document, exit_code=result.exit_code)
    try:
        result = branch.exec(text, timeout_s=options.timeout, wait=options.wait, on_output=_write)
    except (CommandTimedOut, ShellDied):
        sys.stdout.flush()
        raise
    return Answer(text="", document={}, exit_code=result.exit_code)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
