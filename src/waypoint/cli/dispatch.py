"""Parse, call one verb, turn an error into an exit code and text or JSON."""

import argparse
import dataclasses
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from waypoint.cli.answer import Answer, print_answer
from waypoint.cli.failure import guarded
from waypoint.cli.parser import Verb, parse
from waypoint.config import config_files, find_state_dir
from waypoint.session.waypoint import Waypoint

__all__ = ["dispatch"]


def dispatch(words: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    options = parse(words)
    if options.verb.name != "exec":  # there an interrupt is for the command
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
    if options.verbose:
        logging.basicConfig(level=logging.DEBUG, format="waypoint: %(message)s")
    return guarded(
        lambda: _run(options),
        is_exec=options.verb.name == "exec",
        as_json=options.json,
        verbose=options.verbose,
    )


def _run(options: argparse.Namespace) -> int:
    answer = _call(options.verb, options)
    print_answer(answer, as_json=options.json, quiet=options.quiet, timings=options.timings)
    sys.stdout.flush()
    return answer.exit_code


def _call(verb: Verb, options: argparse.Namespace) -> Answer:
    state_dir = Path(find_state_dir(options.state_dir, environ=os.environ, files=config_files(os.environ)))
    function = getattr(importlib.import_module(f"waypoint.cli.{verb.module}"), verb.function)
    if verb.on_host:
        host_answer: Answer = function(state_dir, options)
        return host_answer
    with Waypoint(state_dir) as waypoint:
        newest = waypoint.context.catalogue.newest_operation()
        answer: Answer = function(waypoint, options)
        if options.timings:
            operations = waypoint.context.catalogue.operations_after(newest)
            answer = dataclasses.replace(answer, operations=operations)
        return answer


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """The first signal starts the undoing; later ones wait for it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
