"""The grammar of the command line. Verbs are named here and imported only when called."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Verb", "parse"]

EXIT_CODES = """\
exit codes:
  0 done   1 failure   2 wrong usage   3 no such thing   4 not permitted   5 name taken or busy
  6 the kernel, CRIU or the pool failed   7 this host cannot do it   130 interrupted
  exec ends with the command's own code; 124 if it ran out of time, 125 if it could not be run
"""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb and where its function is. Host verbs get the state directory, the others an open Waypoint."""

    name: str
    module: str
    function: str
    on_host: bool = False


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; a wrong one ends the process with status 2, as usual.

    What follows the first ``--`` of an exec is the command and is not looked at.
    """
    words, command = list(argv), None
    if "exec" in words[:4] and "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    options = _grammar().parse_args(words)
    if command is not None:
        options.command = command
    return options


def _grammar() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="waypoint",
        description="Live terminal sessions that can be checkpointed, restored and branched in milliseconds.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(state_dir=None, json=False, quiet=False, timings=False, verbose=False)
    common = _common_options()
    for option in ("--state-dir",):
        parser.add_argument(option, metavar="D", help="state directory (default /var/lib/waypoint)")
    parser.add_argument(
        "--version", "-v", action="version", version=f"waypoint version {_version()}", help="print the version"
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, module: str, help_: str, *, function: str = "", on_host: bool = False, example: str = ""):  # type: ignore[no-untyped-def] # noqa: ANN202
        sub = verbs.add_parser(
            name,
            help=help_,
            description=help_[0].upper() + help_[1:] + ".",
            epilog=f"example:\n  {example}" if example else None,
            parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(verb=Verb(name, module, function or name, on_host))
        return sub

    setup = verb("setup", "host", "make this host ready: CRIU, the pool, the kernel's facts", on_host=True)
    setup.add_argument("--pool-size", metavar="S", help="size of the pool's file, such as 20G")
    verb("doctor", "host", "tell what this host can and cannot do", on_host=True)
    _pool_verbs(verb("pool", "host", "show, grow or unmount the pool", function="pool_status", on_host=True), common)

    init = verb(
        "init", "sessions", "create a session and start its shell", example="waypoint init ~/project --name demo"
    )
    init.add_argument("directory", nargs="?", metavar="DIR", help="where the shell starts (default: here); copied on write")
    init.add_argument("--base", metavar="host|DIR|NAME", help="the root file system below (default: the host's own)")
    init.add_argument("--name", metavar="N", help="a name for the session")

    exec_ = verb(
        "exec", "exec", "run a command in a branch's shell", function="exec_",
        example="waypoint exec demo -- 'cd src && export MODE=debug'\n  waypoint exec demo:fork-1 --timeout 60 -- make test",
    )  # fmt: skip
    _target(exec_)
    exec_.add_argument("--timeout", type=float, metavar="S", help="interrupt the command after S seconds")
    exec_.add_argument("command", nargs="*", metavar="COMMAND", help="after --: shell text, or words")

    snapshot = verb("snapshot", "checkpoints", "save a branch as it is now; it runs on", example="waypoint snapshot demo ready")
    _target(snapshot)
    snapshot.add_argument("name", nargs="?", metavar="NAME", help="a name for the checkpoint")
    restore = verb("restore", "checkpoints", "make a branch a saved point again", example="waypoint restore demo ready")
    _target(restore)
    restore.add_argument("name", metavar="NAME", help="the checkpoint")
    fork = verb(
        "fork", "checkpoints", "make live branches from a checkpoint or a branch", example="waypoint fork demo ready --n 4"
    )
    fork.add_argument("session", metavar="SESSION")
    fork.add_argument("source", metavar="NAME|BRANCH", help="a checkpoint, or a live branch (saved first)")
    fork.add_argument("--n", type=int, metavar="K", help="how many (default 1)")
    fork.add_argument("--id", metavar="ID", help="a name for the one new branch")

    list_ = verb("list", "sessions", "list sessions, or what a session has", function="list_")
    list_.add_argument("session", nargs="?", metavar="SESSION")
    tree = verb("tree", "sessions", "draw a session's checkpoints and branches")
    tree.add_argument("session", metavar="SESSION")
    _target(verb("destroy", "sessions", "end a branch; its checkpoints stay"))
    cleanup = verb("cleanup", "sessions", "remove a session with all it has")
    cleanup.add_argument("session", metavar="SESSION")
    cleanup.add_argument("--force", action="store_true", help="even if another process works on it")
    verb("version", "host", "print the version", on_host=True)
    return parser


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("common options")
    group.add_argument("--state-dir", metavar="D", help="state directory (default /var/lib/waypoint)")
    group.add_argument("--json", action="store_true", help="print one JSON document")
    group.add_argument("--quiet", "-q", action="store_true", help="print only what a script needs")
    group.add_argument("--timings", action="store_true", help="say how long each step took")
    group.add_argument("--verbose", action="store_true", help="say what is being done")
    return common


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="SESSION[:BRANCH]", help="the branch; main if none is said")
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false", help="fail with 'busy' instead of waiting for another caller"
    )


def _pool_verbs(pool: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    actions = pool.add_subparsers(title="actions", metavar="ACTION")
    for name, help_ in (
        ("status", "show its kind and how full it is"),
        ("resize", "grow it"),
        ("unmount", "unmount it when no branch runs"),
    ):
        action = actions.add_parser(name, help=help_, description=help_, parents=[common])
        action.set_defaults(verb=Verb(f"pool {name}", "host", f"pool_{name}", on_host=True))
        if name == "resize":
            action.add_argument("size", metavar="SIZE", help="the new size, such as 40G")


def _version() -> str:
    from waypoint import __version__

    return __version__
