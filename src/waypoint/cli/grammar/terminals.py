"""The verbs on terminals, for agents and for people."""

from waypoint.cli.grammar.options import add_detach_key, add_target, add_terminal
from waypoint.cli.grammar.verbs import Verb, Verbs
from waypoint.shell.keys import key_names

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    terminal = verbs.add(
        Verb("terminal", "terminals", "terminal_list"), "open, list, close or resize terminals"
    )
    actions = verbs.actions(terminal, required=True)
    listing = actions.add(Verb("terminal list", "terminals", "terminal_list"), "list a branch's terminals")
    add_target(listing, waits=False)
    new = actions.add(
        Verb("terminal new", "terminals", "terminal_new"),
        "open a terminal with a shell; a terminal whose shell has ended gets a new one",
        "waypoint terminal new demo build --size 120x40",
    )
    add_target(new, waits=False)
    new.add_argument("name", metavar="TERMINAL")
    new.add_argument("--size", metavar="CxR", help="columns x rows (default 120x40)")
    new.add_argument("--shell", metavar="SHELL", help="bash, zsh, dash, ash, sh or a path in the branch")
    new.add_argument("--cwd", metavar="DIR", help="where the shell starts")
    new.add_argument("--env", action="append", metavar="K=V", help="a variable of the shell; may be repeated")
    new.add_argument(
        "--attended", action="store_true", help="for a person: a prompt, line editing, pagers and editors on"
    )
    close = actions.add(
        Verb("terminal close", "terminals", "terminal_close"),
        "end a terminal's shell and what runs in its foreground",
    )
    add_target(close, waits=False)
    close.add_argument("name", metavar="TERMINAL")
    resize = actions.add(
        Verb("terminal resize", "terminals", "terminal_resize"),
        "give a terminal another size",
    )
    add_target(resize, waits=False)
    resize.add_argument("name", metavar="TERMINAL")
    resize.add_argument("size", metavar="CxR", help="columns x rows, such as 120x40")
    send = verbs.add(
        Verb("send", "terminals", "send"),
        "type text and keys into a terminal; the names of keys are those of tmux",
        "waypoint send demo 'print(6 * 7)' Enter",
        "waypoint send demo C-c",
        "waypoint send demo --literal Enter   # the word",
    )
    add_target(send, waits=False)
    send.add_argument("keys", nargs="+", metavar="KEYS", help=f"text or keys: {key_names()}")
    send.add_argument("--literal", "-l", action="store_true", help="send all words as text, not as keys")
    add_terminal(send)
    screen = verbs.add(
        Verb("screen", "terminals", "screen"),
        "print what a terminal shows",
        "waypoint screen demo",
        "waypoint screen demo --format png --output screen.png",
    )
    add_target(screen, waits=False)
    screen.add_argument("--format", choices=("text", "ansi", "html", "png"), default="text")
    screen.add_argument(
        "--scrollback", type=int, default=0, metavar="N", help="also print N lines above the screen"
    )
    screen.add_argument("--output", "-o", metavar="FILE", help="write to a file instead of printing")
    add_terminal(screen)
    wait_for = verbs.add(
        Verb("wait-for", "terminals", "wait_for"),
        "wait until a terminal shows something, is quiet, or its command has ended; exit code 124 after --timeout",
        "waypoint wait-for demo --text '>>> $'",
        "waypoint wait-for demo --idle 500 --timeout 60",
    )
    add_target(wait_for, waits=False)
    condition = wait_for.add_mutually_exclusive_group(required=True)
    condition.add_argument("--text", metavar="RE", help="a regular expression, matched line by line")
    condition.add_argument("--idle", type=float, metavar="MS", help="nothing was printed for MS milliseconds")
    condition.add_argument("--exit", action="store_true", help="nothing runs in the foreground any more")
    wait_for.add_argument("--timeout", type=float, metavar="S", help="wait S seconds at most")
    add_terminal(wait_for)
    attach = verbs.add(
        Verb("attach", "terminals", "attach"),
        "show a branch's terminal in your own terminal, and type into it",
        "waypoint attach demo:fork-1",
    )
    add_target(attach, waits=False)
    attach.add_argument(
        "--read-only", action="store_true", help="only watch: send no keys and no window size"
    )
    add_detach_key(attach)
    add_terminal(attach)
