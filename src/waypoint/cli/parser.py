"""The grammar of the command line. Verbs are named here and imported only when called."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waypoint import __version__

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["Verb", "parse"]

EXIT_CODES = """\
exit codes:
  0 done   1 failure   2 wrong usage   3 no such thing   4 not permitted   5 name taken or busy
  6 the kernel, CRIU or the pool failed   7 this host cannot do it   130 interrupted
  exec ends with the command's own code; 124 if it ran out of time, 125 if it could not be run
"""
WITH_VALUE = frozenset({"--state-dir"})  # options before the verb that take the next word


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
    verb = _verb_word(words)
    if verb == "exec" and "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    if verb == "init":
        # The older `init --shell DIR` asks for a shell, which every session has; DIR is not the shell's name.
        words = ["--shell=" if word == "--shell" else word for word in words]
    options = _grammar().parse_args(words)
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


def _grammar() -> argparse.ArgumentParser:
    common = _common_options()
    parser = argparse.ArgumentParser(
        prog="waypoint",
        description="Live terminal sessions that can be checkpointed, restored and branched in milliseconds.",
        epilog=EXIT_CODES,
        parents=[_common_options()],  # not the verbs' own: set_defaults() below would give them its values
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(state_dir=None, json=False, quiet=False, timings=False, verbose=False)
    parser.add_argument("--version", action="version", version=f"waypoint version {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for add_verbs in (_host_verbs, _session_verbs, _checkpoint_verbs, _file_verbs):
        add_verbs(verbs, common)
    return parser


def _common_options() -> argparse.ArgumentParser:
    """Options that may stand before or after the verb."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("common options")
    group.add_argument("--state-dir", metavar="D", help="state directory (default /var/lib/waypoint)")
    group.add_argument("--json", action="store_true", help="print one JSON document")
    group.add_argument("--quiet", "-q", action="store_true", help="print only what a script needs")
    group.add_argument("--timings", action="store_true", help="say how long each step took")
    group.add_argument("--verbose", action="store_true", help="say what is being done")
    return common


def _add(
    verbs: "_SubParsersAction[argparse.ArgumentParser]",
    common: argparse.ArgumentParser,
    verb: Verb,
    about: str,
    *examples: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        verb.name.split()[-1],
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog="\n  ".join(("examples:", *examples)) if examples else None,
        parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(verb=verb)
    return parser


def _host_verbs(verbs: "_SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser) -> None:
    setup = _add(
        verbs,
        common,
        Verb("setup", "host", "setup", on_host=True),
        "make this host ready: CRIU, the pool, what CRIU knows of the kernel",
        "waypoint setup --pool-size 20G",
    )
    setup.add_argument("--pool-size", metavar="S", help="size of a new pool's file, such as 20G")
    _add(
        verbs,
        common,
        Verb("doctor", "host", "doctor", on_host=True),
        "tell what this host can do, what is missing and how to get it",
    )
    pool = _add(
        verbs, common, Verb("pool", "host", "pool_status", on_host=True), "show, grow or unmount the pool"
    )
    actions = pool.add_subparsers(title="actions", metavar="ACTION")
    for name, about in (
        ("status", "show its kind and how full it is"),
        ("resize", "grow it, while it is in use"),
        ("unmount", "unmount it when no branch runs; the next command mounts it again"),
    ):
        action = _add(actions, common, Verb(f"pool {name}", "host", f"pool_{name}", on_host=True), about)
        if name == "unmount":
            action.add_argument(
                "--if-idle", action="store_true", help="leave it, without an error, if it is in use"
            )
        if name == "resize":
            action.add_argument("size", metavar="SIZE", help="the new size, such as 40G")
    _add(verbs, common, Verb("version", "host", "version", on_host=True), "print the version")


def _session_verbs(
    verbs: "_SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    init = _add(
        verbs,
        common,
        Verb("init", "sessions", "init"),
        "create a session with a live branch 'main' and start its shell",
        "waypoint init ~/project --name demo",
        "waypoint init --base /srv/rootfs",
    )
    init.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="where the shell starts (default: here); never changed itself. A root file system becomes the base",
    )
    init.add_argument("--base", metavar="host|DIR|NAME", help="the root file system below (default: host)")
    init.add_argument("--name", metavar="N", help="a name for the session, usable in place of its id")
    init.add_argument(
        "--shell",
        nargs="?",
        metavar="=NAME",
        help="bash, zsh, dash, ash, sh or a path in the base (default: the first of these that it has)",
    )
    exec_ = _add(
        verbs,
        common,
        Verb("exec", "sessions", "exec_"),
        "run a command in a branch's shell and end with its exit code",
        "waypoint exec demo -- 'cd src && export MODE=debug'",
        "waypoint exec demo:fork-1 --timeout 60 -- make test",
    )
    _add_target(exec_)
    exec_.add_argument("--timeout", type=float, metavar="S", help="interrupt the command after S seconds")
    exec_.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help="after --: one word is shell text, several are a command",
    )
    list_ = _add(
        verbs,
        common,
        Verb("list", "sessions", "list_"),
        "list sessions, or a session's checkpoints and branches",
    )
    list_.add_argument("session", nargs="?", metavar="SESSION")
    tree = _add(verbs, common, Verb("tree", "sessions", "tree"), "draw a session's checkpoints and branches")
    tree.add_argument("session", metavar="SESSION")
    destroy = _add(
        verbs,
        common,
        Verb("destroy", "sessions", "destroy"),
        "end a branch; its checkpoints stay",
        "waypoint destroy demo:fork-1",
    )
    _add_target(destroy)
    cleanup = _add(verbs, common, Verb("cleanup", "sessions", "cleanup"), "remove a session with all it has")
    cleanup.add_argument("session", metavar="SESSION")
    cleanup.add_argument(
        "--force", action="store_true", help="end running commands with it, and wait for operations under way"
    )


def _checkpoint_verbs(
    verbs: "_SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    snapshot = _add(
        verbs,
        common,
        Verb("snapshot", "checkpoints", "snapshot"),
        "save a branch as it is now; it runs on",
        "waypoint snapshot demo ready",
    )
    _add_target(snapshot)
    snapshot.add_argument("name", nargs="?", metavar="NAME", help="a name for the checkpoint")
    restore = _add(
        verbs,
        common,
        Verb("restore", "checkpoints", "restore"),
        "make a branch a saved point again; what it did since is gone, checkpoints stay",
        "waypoint restore demo ready",
    )
    _add_target(restore)
    restore.add_argument("name", metavar="NAME", help="the checkpoint")
    fork = _add(
        verbs,
        common,
        Verb("fork", "checkpoints", "fork"),
        "make live branches from a checkpoint, or from a branch as it is now",
        "waypoint fork demo ready --n 4",
        "waypoint fork demo main --id experiment",
    )
    fork.add_argument("session", metavar="SESSION")
    fork.add_argument("source", metavar="NAME|BRANCH", help="a checkpoint, or a live branch (saved first)")
    fork.add_argument("--n", type=int, metavar="K", help="how many (default 1)")
    fork.add_argument("--id", metavar="ID", help="a name for the one new branch")


COPY_RULES = """
A path in a branch is SESSION[:BRANCH]:/PATH; everything else is a path on the host (write ./a:/b for a file
of such a name). Also accepted: cp SESSION SRC DST, with the branch's side as BRANCH:/PATH.

Missing directories are made. A file goes into a directory that is there, a directory is merged into it, and
anything else is replaced at once. A link at the destination is replaced, not followed; end the path in / to
follow one that leads to a directory. Contents and permission bits are kept, owners and times are not.
Links, devices, sockets and FIFOs are refused. A single - is a tar stream: from standard input it is unpacked
into the directory; to standard output its names begin with that of what is copied (with . for /PATH/.).
"""


def _file_verbs(verbs: "_SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser) -> None:
    cp = _add(
        verbs,
        common,
        Verb("cp", "files", "cp"),
        "copy files into a branch or out of it",
        "waypoint cp ./app demo:/srv/app",
        "waypoint cp demo:fork-1:/srv/app/result.json .",
        "tar c . | waypoint cp - demo:/srv/app",
        "waypoint cp demo:/srv/app - | tar t",
    )
    cp.description = f"{cp.description}\n{COPY_RULES}".rstrip()
    cp.usage = "waypoint cp [options] SRC DST"
    for name in ("SRC", "DST"):  # one by one: a list of all would not let an option stand in between
        cp.add_argument("operands", action="append", metavar=name)
    cp.add_argument("operands", action="append", nargs="?", help=argparse.SUPPRESS)
    cp.add_argument("--links", action="store_true", help="copy symbolic links as links; none is followed")
    _add_no_wait(cp)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="SESSION[:BRANCH]", help="the branch; 'main' if none is said")
    _add_no_wait(parser)


def _add_no_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="fail with 'busy' instead of waiting for another caller",
    )
