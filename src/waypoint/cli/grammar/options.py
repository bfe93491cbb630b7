"""Options that several verbs have."""

import argparse

from waypoint.names import MAIN

__all__ = ["add_detach_key", "add_job", "add_no_wait", "add_target", "add_terminal"]


def add_target(parser: argparse.ArgumentParser, *, waits: bool = True, may_be_main: bool = True) -> None:
    if may_be_main:
        parser.add_argument("target", metavar="SESSION[:BRANCH]", help="the branch (default: main)")
    else:
        parser.add_argument("target", metavar="SESSION:BRANCH", help="the branch; it cannot be main")
    if waits:
        add_no_wait(parser)


def add_no_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="fail with 'busy' instead of waiting for another caller",
    )


def add_detach_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--detach-key", default="C-]", metavar="KEY", help="the key that detaches (default: %(default)s)"
    )


def add_terminal(parser: argparse.ArgumentParser, default: str | None = MAIN) -> None:
    parser.add_argument("--terminal", default=default, metavar="T", help=f"which terminal (default: {MAIN})")


def add_job(parser: argparse.ArgumentParser) -> None:
    add_target(parser, waits=False)
    parser.add_argument("job", type=int, metavar="JOB", help="the number that exec --detach printed")
