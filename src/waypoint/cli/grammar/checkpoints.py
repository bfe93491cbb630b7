"""The verbs that save, restore and branch."""

from waypoint.cli.grammar.options import add_target
from waypoint.cli.grammar.verbs import Verb, Verbs
from waypoint.names import MAIN

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    snapshot = verbs.add(
        Verb("snapshot", "checkpoints", "snapshot"),
        "save a branch as it is now; it keeps running",
        "waypoint snapshot demo ready",
        "waypoint snapshot demo before-build --files-only",
        "waypoint snapshot demo:fork-1 idea --park",
        "waypoint snapshot demo step-100 --pid 4711",
    )
    add_target(snapshot)
    snapshot.add_argument("name", nargs="?", metavar="NAME", help="a name for the checkpoint")
    ways = snapshot.add_mutually_exclusive_group()
    ways.add_argument(
        "--files-only",
        action="store_true",
        help="save files but no processes: a restore or fork gives these files and a new shell",
    )
    ways.add_argument("--park", action="store_true", help="end the branch once it is saved")
    ways.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="save a program of this host that works in the session's work directory (init --work-dir), with the"
        " files of 'main' and instead of the session's own processes; a restore lets it run again as PID",
    )
    park = verbs.add(
        Verb("park", "checkpoints", "park"),
        "save a branch and end it; fork makes it live again",
        "waypoint park demo:fork-1 idea",
        "waypoint fork demo idea --id fork-1   # later",
    )
    add_target(park, may_be_main=False)
    park.add_argument("name", nargs="?", metavar="NAME", help="a name for the checkpoint")
    restore = verbs.add(
        Verb("restore", "checkpoints", "restore"),
        "set a branch back to a checkpoint; what it did since is lost, checkpoints stay",
        "waypoint restore demo ready",
    )
    add_target(restore)
    restore.add_argument("name", metavar="NAME", help="the checkpoint")
    fork = verbs.add(
        Verb("fork", "checkpoints", "fork"),
        "make live branches from a checkpoint, or from a branch as it is now",
        "waypoint fork demo ready --n 4",
        "waypoint fork demo main --id experiment",
    )
    fork.add_argument("session", metavar="SESSION")
    fork.add_argument("source", metavar="NAME|BRANCH", help="a checkpoint, or a live branch (saved first)")
    fork.add_argument("--n", type=int, metavar="K", help="how many branches (default 1)")
    fork.add_argument("--id", metavar="ID", help="a name for the new branch (not with --n above 1)")
    promote = verbs.add(
        Verb("promote", "checkpoints", "promote"),
        "replace 'main' by another branch; what 'main' was is lost, checkpoints stay",
        "waypoint promote demo:fork-2",
    )
    add_target(promote, may_be_main=False)
    promote.add_argument(
        "--over", default=MAIN, metavar="BRANCH", help="the branch to replace (default: main)"
    )
