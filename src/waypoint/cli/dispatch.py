"""Run one command line: translate older words, parse, call the verb, print its answer or its error."""

import argparse
import contextlib
import dataclasses
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from waypoint import __version__
from waypoint.cli.answer import Answer, print_answer
from waypoint.cli.exec import parse_exec, run_exec
from waypoint.cli.failure import guarded, print_older_error
from waypoint.cli.grammar.verbs import Verb
from waypoint.cli.known import is_session
from waypoint.cli.older import Translation, UnknownCommand, translate
from waypoint.cli.parser import VERBS, grammar, parse
from waypoint.cli.phases import with_phases
from waypoint.config import WAYPOINT, config_files, find_state_dir, read_settings
from waypoint.errors import UsageError
from waypoint.session.waypoint import Waypoint

__all__ = ["dispatch"]

EXIT_OLDER = 1
"""The exit code of an older command line, whatever went wrong."""


def dispatch(words: Sequence[str], *, program: str = WAYPOINT) -> int:
    """Run one command line; return its exit code."""
    if not words:
        grammar(program).print_help()
        print(f"\nVersion: v{__version__}, DAPLab")
        return EXIT_OLDER
    try:
        translation = translate(
            words,
            program=program,
            verbs=VERBS,
            is_session=lambda word: is_session(words, word, program),
        )
    except UnknownCommand as error:
        print(error)
        return EXIT_OLDER
    except UsageError as error:
        print_older_error(error, "")
        return EXIT_OLDER
    if translation.is_older and (request := parse_exec(translation.words, program)) is not None:
        request.is_older = True  # a plain exec that was not recognized before, because its verb was left out
        return run_exec(request)
    options = _parse(translation, program)
    if options is None:
        return EXIT_OLDER
    options.program, options.is_older = program, translation.is_older
    if options.verb.name != "exec":  # exec passes an interrupt to the command
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
    if options.verbose:
        logging.basicConfig(level=logging.DEBUG, format="waypoint: %(message)s")
    return guarded(
        lambda: _run(options, translation),
        verb=options.verb.name,
        is_older=translation.is_older,
        as_json=options.json,
        verbose=options.verbose,
    )


def _parse(translation: Translation, program: str) -> argparse.Namespace | None:
    """The options. If an older command line is wrong, print its error in the older form and return None."""
    if not translation.is_older:
        return parse(translation.words, program)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse(translation.words, program)
    except SystemExit as end:
        if not end.code:
            raise
    _, _, reason = printed.getvalue().strip().rpartition("error: ")
    unknown = reason.removeprefix("unrecognized arguments: ")
    if unknown != reason:
        reason = f"unknown flag: {unknown}" if unknown.startswith("-") else f"too many arguments: {unknown}"
    print(f"Error: {reason}")
    return None


def _run(options: argparse.Namespace, translation: Translation) -> int:
    answer = _call(options.verb, options)
    if translation.reword is not None:
        answer = dataclasses.replace(answer, text=translation.reword(answer.document, answer.text))
    if options.settings["phase_stats"].value:
        answer = with_phases(answer)
    print_answer(answer, as_json=options.json, quiet=options.quiet, timings=options.timings)
    sys.stdout.flush()
    return answer.exit_code


def _call(verb: Verb, options: argparse.Namespace) -> Answer:
    files = config_files(os.environ, program=options.program, executable=sys.argv[0])
    sources = {"environ": os.environ, "files": files, "program": options.program}
    state_dir = Path(find_state_dir(options.state_dir, **sources))
    options.settings = read_settings(options.state_dir, **sources)
    function = getattr(importlib.import_module(f"waypoint.cli.{verb.module}"), verb.function)
    if verb.on_host:
        host_answer: Answer = function(state_dir, options)
        return host_answer
    if not options.settings["sessions_dir"].is_default:
        from waypoint.cli.host import set_up_if_asked_by_older_key

        set_up_if_asked_by_older_key(state_dir, options)
    with Waypoint(state_dir, files) as waypoint:
        newest = waypoint.context.catalogue.newest_operation()
        answer: Answer = function(waypoint, options)
        if options.timings or options.settings["phase_stats"].value:
            operations = waypoint.context.catalogue.operations_after(newest)
            answer = dataclasses.replace(answer, operations=operations)
        return answer


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """The first signal makes the verb undo its work; later ones are ignored, so that they cannot cut that off."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
