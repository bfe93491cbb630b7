"""The command line: parse, call one verb, turn an error into an exit code and text or JSON."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from waypoint.cli.answer import Answer, print_answer, print_error
from waypoint.cli.parser import Verb, parse
from waypoint.config import config_files, load_settings
from waypoint.errors import NotPermitted, WaypointError
from waypoint.session.waypoint import Waypoint

__all__ = ["main"]

EXIT_INTERRUPTED = 130
EXIT_EXEC_FAILED = (
    125  # of exec, when not the command failed but we did: a command's own code may be anything
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.verbose:
        _log_everything()
    try:
        answer = _call(options.verb, options)
        print_answer(answer, as_json=options.json, quiet=options.quiet, timings=options.timings)
        sys.stdout.flush()
    except WaypointError as error:
        return _fail(error, options)
    except KeyboardInterrupt:
        print("waypoint: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # our reader has gone: nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    except OSError as error:  # no layer below had words for it
        if options.verbose:
            raise
        return _fail(_explained(error), options)
    return answer.exit_code


def _fail(error: WaypointError, options: argparse.Namespace) -> int:
    print_error(error, as_json=options.json)
    is_exec = options.verb.name == "exec" and error.exit_code != 124
    return EXIT_EXEC_FAILED if is_exec else error.exit_code


def _explained(error: OSError) -> WaypointError:
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return NotPermitted(what, hint="waypoint needs root: run it with sudo")
    return WaypointError(what, hint="run it again with --verbose to see where this happened")


def _call(verb: Verb, options: argparse.Namespace) -> Answer:
    settings = load_settings(state_dir=options.state_dir, environ=os.environ, files=config_files(os.environ))
    function = getattr(importlib.import_module(f"waypoint.cli.{verb.module}"), verb.function)
    if verb.on_host:
        host_answer: Answer = function(settings.state_dir, options)
        return host_answer
    with Waypoint(settings.state_dir) as waypoint:
        newest = waypoint.context.catalogue.newest_operation()
        answer: Answer = function(waypoint, options)
        if options.timings:
            operations = waypoint.context.catalogue.operations_after(newest)
            answer = answer._replace(operations=operations)
        return answer


def _log_everything() -> None:
    import logging

    logging.basicConfig(level=logging.DEBUG, format="waypoint: %(message)s")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """The first signal starts the undoing; later ones wait for it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
