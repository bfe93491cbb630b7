"""The grammar of the command line. Verbs are named here and imported only when called."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waypoint import __version__
from waypoint.names import MAIN
from waypoint.shell.keys import key_names

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["Verb", "grammar", "parse"]

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
    if verb in ("init", "shell"):
        # The older `init --shell DIR` asks for a shell, which every session has; DIR is not the shell's name.
        words = ["--shell=" if word == "--shell" else word for word in words]
    options = grammar().parse_args(words)
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


def grammar() -> argparse.ArgumentParser:
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
    for add_verbs in (
        _host_verbs,
        _session_verbs,
        _command_verbs,
        _terminal_verbs,
        _checkpoint_verbs,
        _file_verbs,
    ):
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
    completion = _add(
        verbs,
        common,
        Verb("completion", "completion", "completion", on_host=True),
        "print the completion of a shell",
        'eval "$(waypoint completion bash)"',
        "waypoint completion fish >~/.config/fish/completions/waypoint.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
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
    _add_new_session(init)
    init.add_argument("--size", metavar="CxR", help="columns x rows of its terminal (default 120x40)")
    shell = _add(
        verbs,
        common,
        Verb("shell", "shell", "shell"),
        "create a session, attach to it, and ask at the end what to keep",
        "waypoint shell ~/project",
    )
    shell.add_argument("directory", nargs="?", metavar="DIR", help="where the shell starts (default: here)")
    _add_new_session(shell)
    _add_detach_key(shell)
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


def _command_verbs(
    verbs: "_SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    exec_ = _add(
        verbs,
        common,
        Verb("exec", "commands", "exec_"),
        "run a command in a branch's shell, or beside it, and end with its exit code",
        "waypoint exec demo -- 'cd src && export MODE=debug'",
        "waypoint exec demo:fork-1 --timeout 60 -- make test",
        "waypoint exec demo --isolated --cwd /srv -- sort <data >sorted",
        "job=$(waypoint exec demo --detach --quiet -- make world)",
    )
    _add_target(exec_)
    exec_.add_argument(
        "--isolated",
        action="store_true",
        help="a fresh process that leaves the shell alone: output and errors apart, input from here",
    )
    exec_.add_argument("--detach", action="store_true", help="do not wait; print the number of its job")
    _add_terminal(exec_, default=None)
    exec_.add_argument(
        "--timeout", type=float, metavar="S", help="end the command after S seconds, with exit code 124"
    )
    exec_.add_argument(
        "--output-limit",
        type=_bytes,
        metavar="N",
        help="end the command after N bytes (K, M), with exit code 125",
    )
    exec_.add_argument("--cwd", metavar="DIR", help="isolated: where it starts")
    exec_.add_argument("--env", action="append", metavar="K=V", help="isolated: a variable; may be repeated")
    exec_.add_argument("--user", metavar="U", help="isolated: NAME, UID or UID:GID of the branch")
    exec_.add_argument(
        "--stdin", "-i", action="store_true", help="isolated: give it the input also if that is a keyboard"
    )
    exec_.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help="after --: one word is shell text, several are a command",
    )
    jobs = _add(
        verbs,
        common,
        Verb("jobs", "commands", "jobs"),
        "list the commands that a branch keeps, running and ended",
    )
    _add_target(jobs, waits=False)
    wait = _add(
        verbs,
        common,
        Verb("wait", "commands", "wait"),
        "wait for a job and end with its exit code; 124 if it still runs",
        "waypoint wait demo 3 --timeout 60",
    )
    _add_job(wait)
    wait.add_argument("--timeout", type=float, metavar="S", help="wait S seconds at most; the job goes on")
    output = _add(
        verbs,
        common,
        Verb("output", "commands", "output"),
        "print what a job has written until now",
        "waypoint output demo 3 --from 4096",
        "waypoint output demo 3 --follow",
    )
    _add_job(output)
    output.add_argument(
        "--from", dest="offset", type=int, default=0, metavar="OFFSET", help="leave out that many bytes"
    )
    output.add_argument("--follow", action="store_true", help="go on until the job has ended")
    interrupt = _add(
        verbs,
        common,
        Verb("interrupt", "commands", "interrupt"),
        "interrupt what runs in a terminal's foreground, as Ctrl-C does, or a job",
        "waypoint interrupt demo",
    )
    _add_target(interrupt, waits=False)
    interrupt.add_argument("job", nargs="?", type=int, metavar="JOB")
    _add_terminal(interrupt)


def _terminal_verbs(
    verbs: "_SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    terminal = _add(
        verbs, common, Verb("terminal", "terminals", "terminal_list"), "open, list, close or resize terminals"
    )
    actions = terminal.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = _add(
        actions, common, Verb("terminal list", "terminals", "terminal_list"), "list a branch's terminals"
    )
    _add_target(listing, waits=False)
    new = _add(
        actions,
        common,
        Verb("terminal new", "terminals", "terminal_new"),
        "open a terminal with a shell; one whose shell has ended gets a fresh one",
        "waypoint terminal new demo build --size 120x40",
    )
    _add_target(new, waits=False)
    new.add_argument("name", metavar="TERMINAL")
    new.add_argument("--size", metavar="CxR", help="columns x rows (default 120x40)")
    new.add_argument("--shell", metavar="SHELL", help="bash, zsh, dash, ash, sh or a path in the branch")
    new.add_argument("--cwd", metavar="DIR", help="where it starts")
    new.add_argument("--env", action="append", metavar="K=V", help="a variable; may be repeated")
    new.add_argument(
        "--attended", action="store_true", help="for a person: a prompt, line editing, pagers and editors on"
    )
    close = _add(
        actions,
        common,
        Verb("terminal close", "terminals", "terminal_close"),
        "end a terminal's shell and what runs in its foreground",
    )
    _add_target(close, waits=False)
    close.add_argument("name", metavar="TERMINAL")
    resize = _add(
        actions,
        common,
        Verb("terminal resize", "terminals", "terminal_resize"),
        "give a terminal another size",
    )
    _add_target(resize, waits=False)
    resize.add_argument("name", metavar="TERMINAL")
    resize.add_argument("size", metavar="CxR", help="columns x rows, such as 120x40")
    send = _add(
        verbs,
        common,
        Verb("send", "terminals", "send"),
        "type into a terminal: text, and keys by the names that tmux gives them",
        "waypoint send demo 'print(6 * 7)' Enter",
        "waypoint send demo C-c",
        "waypoint send demo --literal Enter   # the word",
    )
    _add_target(send, waits=False)
    send.add_argument("keys", nargs="+", metavar="KEYS", help=f"text or keys: {key_names()}")
    send.add_argument("--literal", "-l", action="store_true", help="all words are text")
    _add_terminal(send)
    screen = _add(
        verbs,
        common,
        Verb("screen", "terminals", "screen"),
        "print what a terminal shows",
        "waypoint screen demo",
        "waypoint screen demo --format png --output screen.png",
    )
    _add_target(screen, waits=False)
    screen.add_argument("--format", choices=("text", "ansi", "html", "png"), default="text")
    screen.add_argument("--scrollback", type=int, default=0, metavar="N", help="and N lines above it")
    screen.add_argument("--output", "-o", metavar="FILE", help="write it to a file")
    _add_terminal(screen)
    wait_for = _add(
        verbs,
        common,
        Verb("wait-for", "terminals", "wait_for"),
        "wait until a terminal shows something, is quiet, or its command has ended; 124 if it does not",
        "waypoint wait-for demo --text '>>> $'",
        "waypoint wait-for demo --idle 500 --timeout 60",
    )
    _add_target(wait_for, waits=False)
    condition = wait_for.add_mutually_exclusive_group(required=True)
    condition.add_argument("--text", metavar="RE", help="a regular expression, matched line by line")
    condition.add_argument("--idle", type=float, metavar="MS", help="nothing was printed for MS milliseconds")
    condition.add_argument("--exit", action="store_true", help="nothing runs in the foreground any more")
    wait_for.add_argument("--timeout", type=float, metavar="S", help="wait S seconds at most")
    _add_terminal(wait_for)
    attach = _add(
        verbs,
        common,
        Verb("attach", "terminals", "attach"),
        "make your terminal the window of a branch's terminal",
        "waypoint attach demo:fork-1",
    )
    _add_target(attach, waits=False)
    attach.add_argument("--read-only", action="store_true", help="only look: keys and window size stay here")
    _add_detach_key(attach)
    _add_terminal(attach)


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


def _add_target(parser: argparse.ArgumentParser, *, waits: bool = True) -> None:
    parser.add_argument("target", metavar="SESSION[:BRANCH]", help="the branch; 'main' if none is said")
    if waits:
        _add_no_wait(parser)


def _add_no_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="fail with 'busy' instead of waiting for another caller",
    )


def _add_new_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", metavar="host|DIR|NAME", help="the root file system below (default: host)")
    parser.add_argument("--name", metavar="N", help="a name for the session, usable in place of its id")
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


def _add_detach_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--detach-key", default="C-]", metavar="KEY", help="the key that detaches (default: %(default)s)"
    )


def _add_terminal(parser: argparse.ArgumentParser, default: str | None = MAIN) -> None:
    parser.add_argument("--terminal", default=default, metavar="T", help=f"which terminal (default: {MAIN})")


def _add_job(parser: argparse.ArgumentParser) -> None:
    _add_target(parser, waits=False)
    parser.add_argument("job", type=int, metavar="JOB", help="the number that exec --detach has printed")


def _bytes(text: str) -> int:
    """``N``, ``NK`` or ``NM``."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(number) * unit
