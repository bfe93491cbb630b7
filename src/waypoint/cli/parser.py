"""The grammar of the command line. Verbs are named here and imported only when called."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from waypoint import __version__
from waypoint.cli.grammar.verbs import Verbs, common_options
from waypoint.config import WAYPOINT

__all__ = ["VERBS", "grammar", "parse"]

_AREAS: Mapping[str, tuple[str, ...]] = {
    "host": ("setup", "doctor", "pool", "info", "completion", "version"),
    "sessions": ("init", "shell", "list", "tree", "destroy", "suspend", "resume", "cleanup"),
    "commands": ("exec", "jobs", "wait", "output", "interrupt"),
    "terminals": ("terminal", "send", "screen", "wait-for", "attach"),
    "checkpoints": ("snapshot", "park", "restore", "fork", "promote"),
    "files": ("cp",),
    "network": ("expose", "unexpose", "ports"),
    "bases": ("build", "base"),
}
"""The modules of :mod:`waypoint.cli.grammar`, each with its verbs; only that of the typed verb is imported."""

VERBS = frozenset(verb for verbs in _AREAS.values() for verb in verbs)

OLDER = """\
Older command words, also those of checkpoint-lite, work too and print what they printed: create, checkpoint,
fork-exec, exec S FORK -- LINE, snapshot S FORK NAME [--park], destroy S FORK, cp S SRC FORK:/DST; see docs/cli.md.

"""
EXIT_CODES = """\
exit codes:
  0 done   1 failure   2 wrong usage   3 not found   4 not permitted   5 name taken or busy
  6 the kernel, CRIU or the pool failed   7 this host cannot do it   130 interrupted
  exec exits with the command's own code; 124 if it ran out of time, 125 if it could not be run
"""
WITH_VALUE = frozenset({"--state-dir"})  # options before the verb that take the next word
_UNKNOWN_WORD = re.compile(r"argument (?:VERB|ACTION): invalid choice: '(.*)' \(choose from ")


def parse(argv: Sequence[str], program: str = WAYPOINT) -> argparse.Namespace:
    """Parse a command line; a wrong one ends the process with status 2, as usual.

    The words after the first ``--`` of an exec are the command and are not parsed.
    """
    words, command = list(argv), None
    verb = _verb_word(words)
    if verb == "exec" and "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    if verb in ("init", "shell"):
        # The older `init --shell DIR` asks for a shell, which every session has; DIR is not the name of a shell.
        words = ["--shell=" if word == "--shell" else word for word in words]
    options = grammar(program, verb).parse_args(words)
    if command is not None:
        options.command = command
    return options


def _verb_word(words: Sequence[str]) -> str:
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            return word
        is_value = not is_value and word in WITH_VALUE
    return ""


def _names(parser: argparse.ArgumentParser) -> frozenset[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return frozenset(action.choices)
    return frozenset()


class _Parser(argparse.ArgumentParser):
    """For a mistyped verb it suggests the closest one, instead of listing all."""

    def error(self, message: str) -> NoReturn:
        unknown = _UNKNOWN_WORD.match(message)
        if unknown:
            from difflib import get_close_matches  # seldom needed

            close = get_close_matches(unknown[1], _names(self), n=1)
            meant = f"; do you mean {close[0]}?" if close else ""
            message = (
                f"there is no {self.prog} {unknown[1]}{meant}\n  hint: {self.prog} --help lists what there is"
            )
        super().error(message)


def grammar(program: str = WAYPOINT, verb: str = "") -> argparse.ArgumentParser:
    """The parser for all verbs, or if ``verb`` is one, for the verbs of its module."""
    parser: argparse.ArgumentParser = _Parser(
        prog=program,
        description="Live terminal sessions that can be checkpointed, restored and branched in milliseconds.",
        epilog=OLDER + EXIT_CODES,
        parents=[common_options()],  # a copy: set_defaults() below would change the verbs' own
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(state_dir=None, json=False, quiet=False, timings=False, verbose=False)
    parser.add_argument("--version", action="version", version=f"{program} version v{__version__}")
    verbs = Verbs(parser.add_subparsers(title="verbs", metavar="VERB", required=True), common_options())
    for area, names in _AREAS.items():
        if verb not in VERBS or verb in names:
            add_verbs: Callable[[Verbs], None] = import_module(f"waypoint.cli.grammar.{area}").add_verbs
            add_verbs(verbs)
    return parser
