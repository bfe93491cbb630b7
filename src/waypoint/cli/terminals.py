"""Verbs on terminals: terminal, send, screen, wait-for, attach."""

import argparse
import sys
from pathlib import Path

from waypoint.cli.answer import Answer
from waypoint.cli.commands import parse_env
from waypoint.cli.target import find_branch, parse_size
from waypoint.errors import UsageError
from waypoint.session.session import Branch
from waypoint.session.terminals.attach import attach as attach_terminal
from waypoint.session.terminals.attach import require_terminal
from waypoint.session.waypoint import Waypoint
from waypoint.shell.keys import encode_keys
from waypoint.shell.protocol import TerminalState
from waypoint.shell.rendering import render_ansi, render_html, render_png, render_text
from waypoint.shell.screen import Screen

__all__ = [
    "attach",
    "attach_to",
    "require_attachable",
    "screen",
    "send",
    "terminal_close",
    "terminal_list",
    "terminal_new",
    "terminal_resize",
    "wait_for",
]

_STATES = {
    TerminalState.STARTING: "starting",
    TerminalState.PROMPT: "prompt",
    TerminalState.RUNNING: "running",
    TerminalState.TYPED: "busy",
    TerminalState.DEAD: "dead",
}


def terminal_list(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    found = find_branch(waypoint, options.target).terminals()
    return Answer(
        text="\n".join(
            [
                "Terminals:",
                *(
                    f"  {status.name} {_STATES.get(status.state, '?')} size={status.columns}x{status.rows}"
                    f" shell={status.shell_pid}" + (f" job={status.job}" if status.job else "")
                    for status in found
                ),
            ]
        ),
        quiet="\n".join(status.name for status in found),
        document={
            "terminals": [
                {
                    "name": status.name,
                    "state": _STATES.get(status.state, "unknown"),
                    "rows": status.rows,
                    "columns": status.columns,
                    "shell_pid": status.shell_pid or None,
                    "job": status.job or None,
                }
                for status in found
            ]
        },
    )


def terminal_new(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    branch.open_terminal(
        options.name,
        size=parse_size(options.size) if options.size else None,
        shell=options.shell,
        cwd=options.cwd,
        env=parse_env(options.env),
        attended=options.attended or None,
    )
    opened = next(terminal for terminal in branch.terminals() if terminal.name == options.name)
    return Answer(
        text=f"Terminal '{options.name}' opened",
        quiet=options.name,
        document={"name": options.name, "rows": opened.rows, "columns": opened.columns},
    )


def terminal_close(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    find_branch(waypoint, options.target).close_terminal(options.name)
    return Answer(text=f"Terminal '{options.name}' closed", quiet="", document={"name": options.name})


def terminal_resize(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    size = parse_size(options.size)
    find_branch(waypoint, options.target).resize(size, terminal=options.name)
    return Answer(
        text=f"Terminal '{options.name}' is {options.size}",
        quiet="",
        document={"name": options.name, "rows": size[0], "columns": size[1]},
    )


def send(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    branch.send(*options.keys, terminal=options.terminal, literal=options.literal)
    return Answer(text="", document={"sent": options.keys})


def screen(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    shown = find_branch(waypoint, options.target).screen(
        terminal=options.terminal, scrollback=options.scrollback
    )
    return _screen_answer(shown, options)


def wait_for(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    shown = find_branch(waypoint, options.target).wait_for(
        text=options.text,
        idle_ms=options.idle,
        exit=options.exit,
        terminal=options.terminal,
        timeout_s=options.timeout,
    )
    return Answer(text="", document=_screen_document(shown))


def attach(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    ended = attach_to(
        branch,
        options.target,
        options.terminal,
        detach_key=options.detach_key,
        read_only=options.read_only,
    )
    message = {
        "detached": f"Detached; {options.target} runs on.",
        "exited": f"The shell has ended. A fresh one: waypoint terminal new {options.target} {options.terminal}",
        "closed": "The terminal was closed.",
        "hung up": "",
    }[ended]
    return Answer(text=message, document={"ended": ended})


def require_attachable(detach_key: str) -> int:
    """The code of the key that detaches. Raises UsageError if it is not a control key, or if this is not a terminal."""
    key = encode_keys([detach_key])
    if len(key) != 1 or key[0] >= 0x20:
        raise UsageError(
            f"{detach_key!r} is not a control key",
            hint="choose one such as C-] or C-\\; other keys are typed into the terminal",
        )
    require_terminal(sys.stdin.fileno(), sys.stdout.fileno())
    return key[0]


def attach_to(branch: Branch, reference: str, terminal: str, *, detach_key: str, read_only: bool) -> str:
    """Show a terminal of a branch in this process's terminal; return why that ended."""
    return attach_terminal(
        branch.address,
        terminal,
        keyboard=sys.stdin.fileno(),
        window=sys.stdout.fileno(),
        detach_key=require_attachable(detach_key),
        notice=f"{reference}, terminal {terminal}: {detach_key} detaches",
        read_only=read_only,
    )


def _screen_answer(shown: Screen, options: argparse.Namespace) -> Answer:
    document = _screen_document(shown)
    if options.format == "png":
        image = render_png(shown)
        if options.output:
            Path(options.output).write_bytes(image)
            return Answer(text=options.output, document={**document, "file": options.output})
        if sys.stdout.isatty() or options.json:
            raise UsageError(
                "a picture must be written to a file", hint="--output screen.png, or redirect the output"
            )
        sys.stdout.buffer.write(image)
        return Answer(text="", document=document)
    text = {"text": render_text, "ansi": render_ansi, "html": render_html}[options.format](shown)
    if options.output:
        Path(options.output).write_text(text + "\n")
        return Answer(text=options.output, document={**document, "file": options.output})
    return Answer(text=text, quiet=text, document={**document, options.format: text})


def _screen_document(shown: Screen) -> dict[str, object]:
    return {
        "rows": shown.rows,
        "columns": shown.columns,
        "cursor": {
            "row": shown.cursor_row,
            "column": shown.cursor_column,
            "visible": shown.cursor_visible,
        },
        "title": shown.title,
        "alternate": shown.is_alternate,
        "text": render_text(shown),
    }
