"""The options that say what a new session can reach, use and do; cli/creation.py carries them out."""

import argparse

from waypoint.model import NetworkMode

__all__ = ["add_containment"]


def add_containment(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("network")
    network.add_argument(
        "--net",
        choices=[str(mode) for mode in NetworkMode],
        help="nat: connections out through the host, none in (default if this host can do it); isolated: loopback only;"
        " host: the host's own network, with its loopback and its ports, shared by all branches",
    )
    network.add_argument(
        "--allow",
        action="append",
        metavar="HOST[:PORT]",
        help="nat: reach only this name, address or network; a name is looked up once, now; may be repeated",
    )
    limits = parser.add_argument_group("limits of each branch")
    limits.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory, such as 512M or 2G; at the limit the process that holds most is killed",
    )
    limits.add_argument("--cpus", type=float, metavar="N", help="processors, such as 1.5")
    limits.add_argument("--pids", type=int, metavar="N", help="processes and threads, at least 8")
    limits.add_argument("--disk", metavar="SIZE", help="space that changed files may take in the pool")
    walls = parser.add_argument_group("walls")
    walls.add_argument("--user", metavar="U", help="who the shells run as: NAME, UID or UID:GID of the base")
    walls.add_argument(
        "--read-only-base", action="store_true", help="only the workspace, /tmp and /run can be written"
    )
    walls.add_argument("--no-new-privs", action="store_true", help="set-user-id programs gain no rights")
    walls.add_argument("--privileged", action="store_true", help="NO walls: root inside is root of this host")
    shared = parser.add_argument_group("shared with the host")
    shared.add_argument(
        "--volume",
        action="append",
        metavar="HOST:PATH[:ro]",
        help="show a directory or file of the host at PATH: not branched, in no checkpoint; may be repeated",
    )
    shared.add_argument(
        "--secret",
        action="append",
        metavar="NAME=FILE",
        help="show FILE as /run/secrets/NAME, outside every checkpoint; may be repeated",
    )
    shared.add_argument(
        "--hide",
        action="append",
        metavar="PATH",
        help="base host: also hide this path of the host; may be repeated",
    )
    shared.add_argument(
        "--show", action="append", metavar="PATH", help="base host: do not hide this path; may be repeated"
    )
