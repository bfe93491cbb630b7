"""The verbs that save, restore and branch."""

from waypoint.cli.grammar.options import add_target
from waypoint.cli.grammar.verbs import Verb, Verbs
from waypoint.names import MAIN

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    snapshot = verbs.add(
        Verb("snapshot", "checkpoints", "snapshot"),
        "save a branch as it is now; it runs on",
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
        help="save no processes: restored or forked, it is these files and a fresh shell",
    )
    ways.add_argument("--park", action="store_true", help="let the branch go once it is saved")
    ways.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="save a program of this host that works in the session's work directory (init --work-dir), with the"
        " files of 'main' and in place of the session's own processes; a restore brings it back as PID",
    )
    park = verbs.add(
        Verb("park", "checkpoints", "park"),
        "save a branch and let it go; bring it back with fork",
        "waypoint park demo:fork-1 idea",
        "waypoint fork demo idea --id fork-1   # later",
    )
    add_target(park)
    park.add_argument("name", nargs="?", metavar="NAME", help="a name for the checkpoint")
    restore = verbs.add(
        Verb("restore", "checkpoints", "restore"),
        "make a branch a saved point again; what it did since is gone, checkpoints stay",
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
    fork.add_argument("--n", type=int, metavar="K", help="how many (default 1)")
    fork.add_argument("--id", metavar="ID", help="a name for the one new branch")
    promote = verbs.add(
        Verb("promote", "checkpoints", "promote"),
        "let 'main' go on as another branch; what 'main' was is given up, checkpoints stay",
        "waypoint promote demo:fork-2",
    )
    add_target(promote)
    promote.add_argument(
        "--over", default=MAIN, metavar="BRANCH", help="the branch to give up (default: main)"
    )
