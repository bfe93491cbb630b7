"""The options of a new session, whichever verb makes it; cli/creation.py carries them out."""

import argparse

from waypoint.cli.grammar.containment import add_containment

__all__ = ["add_new_session"]


def add_new_session(parser: argparse.ArgumentParser, *, chooses_base: bool = True) -> None:
    if chooses_base:
        _add_base_choice(parser)
    parser.add_argument("--name", metavar="N", help="a name for the session, usable instead of its id")
    parser.add_argument(
        "--shell",
        nargs="?",
        metavar="=NAME",
        help="bash, zsh, dash, ash, sh or a path in the base (default: the first of these that it has)",
    )
    parser.add_argument(
        "--env", action="append", metavar="K=V", help="a variable of the shell; may be repeated"
    )
    parser.add_argument(
        "--allow-self",
        action="store_true",
        help="let programs inside save their own branch: waypoint-here snapshot NAME",
    )
    parser.add_argument(
        "--work-dir",
        nargs="?",
        const=True,
        default=False,
        metavar="PATH",
        help="mount the files of 'main' on this host, at PATH (an empty directory) or in the state directory;"
        " programs that you start there can be saved with them (snapshot --pid)",
    )
    add_containment(parser)


def _add_base_choice(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--base",
        metavar="host|DIR|BASE",
        help="the root file system to start from: host (default), a directory, or a base by name or id (waypoint base list)",
    )
    choice.add_argument(
        "--from-image",
        metavar="IMAGE",
        help="fetch an image and start from it: docker://NAME, oci:DIR, docker-archive:FILE, docker-daemon:NAME",
    )
