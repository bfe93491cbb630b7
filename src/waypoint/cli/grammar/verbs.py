"""A verb, and how one is added to the grammar."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["Verb", "Verbs", "common_options"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb and where its function is. Host verbs get the state directory, the others an open Waypoint."""

    name: str
    module: str
    function: str
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class Verbs:
    """The verbs of the program, or the actions of one of them, with the options that all of them take."""

    parsers: "_SubParsersAction[argparse.ArgumentParser]"
    common: argparse.ArgumentParser

    def add(self, verb: Verb, about: str, *examples: str) -> argparse.ArgumentParser:
        parser = self.parsers.add_parser(
            verb.name.split()[-1],
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog="\n  ".join(("examples:", *examples)) if examples else None,
            parents=[self.common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(verb=verb)
        return parser

    def actions(self, verb: argparse.ArgumentParser, *, required: bool = False) -> "Verbs":
        return Verbs(verb.add_subparsers(title="actions", metavar="ACTION", required=required), self.common)


def common_options() -> argparse.ArgumentParser:
    """Options that may stand before or after the verb."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("common options")
    group.add_argument("--state-dir", metavar="D", help="state directory (default /var/lib/waypoint)")
    group.add_argument("--json", action="store_true", help="print one JSON document")
    group.add_argument("--quiet", "-q", action="store_true", help="print only what a script needs")
    group.add_argument("--timings", action="store_true", help="print how long each step took")
    group.add_argument("--verbose", action="store_true", help="print what is being done")
    return common
