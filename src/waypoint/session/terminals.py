"""The terminals of a branch, as an agent uses them: open, type, look, wait."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from waypoint.errors import LaunchFailed, ShellError, UsageError, WaitTimedOut
from waypoint.names import parse_name
from waypoint.session.command import checked_timeout
from waypoint.session.place import Place
from waypoint.session.view import Ended, Printed, TerminalView, unknown_terminal
from waypoint.shell.client import InitRefused, ShellClient
from waypoint.shell.keys import encode_keys
from waypoint.shell.profile import UNATTENDED_ENV
from waypoint.shell.protocol import (
    ErrorCode,
    Request,
    TerminalState,
    TerminalStatus,
    encode_input,
    encode_named,
    encode_resize,
    encode_signal,
)
from waypoint.shell.rendering import searchable_text
from waypoint.shell.screen import Screen
from waypoint.shell.selection import find_profile
from waypoint.shell.terminal import DEFAULT_SIZE, WindowSize, open_terminal
from waypoint.store.live import root_path
from waypoint.store.settings import session_settings

__all__ = [
    "close_terminal",
    "list_terminals",
    "look",
    "new_terminal",
    "resize_terminal",
    "send_keys",
    "signal_terminal",
    "wait_for",
]

SIZE_MAX = 1000
SCROLLBACK_MAX = 1 << 20  # init keeps a MiB of output
WAIT_HISTORY = 2000  # lines that may scroll by between two looks at the screen


def list_terminals(place: Place) -> list[TerminalStatus]:
    return place.ask(ShellClient.terminals)


def new_terminal(
    place: Place,
    name: str,
    *,
    size: WindowSize | None = None,
    shell: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    attended: bool | None = None,
) -> None:
    """Open a terminal with a shell in it. A name whose shell has ended gets a fresh one.

    What is not said here is as the session was made.
    """
    parse_name("terminal", name)
    settings = session_settings(place.catalogue, place.session_id)
    size = size or settings.size or DEFAULT_SIZE
    checked_size(size)
    with place.gate():
        incarnation = place.incarnation()
        profile = find_profile(Path(root_path(place.state_dir, incarnation)), shell or settings.shell)
        is_attended = settings.attended if attended is None else attended
        if is_attended:
            profile = profile.attended()
        directory = cwd or place.catalogue.workspace(place.session_id)
        with place.connect(incarnation) as client:
            try:
                variables = {**({} if is_attended else UNATTENDED_ENV), **settings.env, **(env or {})}
                open_terminal(client, name, profile, size=size, cwd=directory, env=variables)
            except InitRefused as refusal:
                if refusal.reason in (ErrorCode.EXEC_FAILED, ErrorCode.SHELL):
                    raise LaunchFailed(f"cannot start the shell: {refusal}") from refusal
                raise ShellError(
                    f"cannot open terminal {name!r} in {place.where}: {refusal}",
                    hint="waypoint terminal list shows those that are open",
                ) from refusal


def close_terminal(place: Place, name: str) -> None:
    """End its shell and what runs in its foreground."""
    _ask(place, name, encode_named(Request.CLOSE, name))


def resize_terminal(place: Place, name: str, size: WindowSize) -> None:
    """Programs in it are told (SIGWINCH)."""
    checked_size(size)
    _ask(place, name, encode_resize(name, *size))


def signal_terminal(place: Place, name: str, number: int) -> None:
    """Send a signal to the foreground processes."""
    _ask(place, name, encode_signal(name, number))


def send_keys(place: Place, terminal: str, words: Sequence[str], *, literal: bool = False) -> None:
    """Type text and named keys, as ``tmux send-keys`` does."""
    data = encode_keys(words, literal=literal)
    in_other_mode = encode_keys(words, application_cursor=True, literal=literal)
    if data != in_other_mode and look(place, terminal).application_cursor:
        data = in_other_mode
    _ask(place, terminal, encode_input(terminal, data))


def look(place: Place, terminal: str, scrollback: int = 0) -> Screen:
    """What the terminal shows now, and the last ``scrollback`` lines above it."""
    if not 0 <= scrollback <= SCROLLBACK_MAX:
        raise UsageError(f"{scrollback} lines of scrollback", hint=f"0 to {SCROLLBACK_MAX}")
    with TerminalView(place, terminal, history=scrollback) as view:
        return view.screen(scrollback)


def wait_for(
    place: Place,
    terminal: str,
    *,
    text: str | None = None,
    idle_ms: float | None = None,
    exit: bool = False,
    timeout_s: float | None = None,
) -> Screen:
    """Wait until the screen shows ``text`` (a regular expression; also in lines that have scrolled off it
    meanwhile), or nothing was printed for ``idle_ms``, or nothing runs in the foreground any more (``exit``).

    Returns the screen as it is then. Raises WaitTimedOut.
    """
    if (text is not None) + (idle_ms is not None) + exit != 1:
        raise UsageError("wait for one of: text, idle, exit", hint="waypoint wait-for --help")
    checked_timeout(timeout_s)
    if idle_ms is not None and not idle_ms >= 0:  # also "nan", which would never come
        raise UsageError(f"a silence of {idle_ms} ms", hint="0 or more milliseconds")
    pattern = _pattern(text)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with TerminalView(place, terminal, history=WAIT_HISTORY) as view:
        quiet_since = time.monotonic()
        while True:
            now = time.monotonic()
            screen = view.screen(min(view.scrolled(), WAIT_HISTORY))
            if pattern is not None and pattern.search(searchable_text(screen)):
                return view.screen()
            if exit and view.status.state in (TerminalState.PROMPT, TerminalState.DEAD):
                return view.screen()
            if idle_ms is not None and now - quiet_since >= idle_ms / 1000:
                return view.screen()
            if deadline is not None and now >= deadline:
                raise WaitTimedOut(
                    f"{_wish(text, idle_ms)} in terminal {terminal!r} of {place.where} in {timeout_s:g} s"
                )
            limits = [deadline, quiet_since + idle_ms / 1000 if idle_ms is not None else None]
            nearest = min((limit for limit in limits if limit is not None), default=None)
            for event in view.events(None if nearest is None else max(0.0, nearest - now)):
                if isinstance(event, Printed):
                    quiet_since = time.monotonic()
                if isinstance(event, Ended):
                    raise ShellError(f"terminal {terminal!r} of {place.where} was closed")


def checked_size(size: WindowSize) -> None:
    if not all(1 <= side <= SIZE_MAX for side in size):
        raise UsageError(
            f"a size of {size[1]}x{size[0]}", hint=f"columns x rows, each from 1 to {SIZE_MAX}: 120x40"
        )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text, re.MULTILINE)
    except re.error as error:
        raise UsageError(
            f"{text!r} is not a regular expression: {error}",
            hint="put a backslash before . * + ? ( ) [ ] to mean them",
        ) from error


def _wish(text: str | None, idle_ms: float | None) -> str:
    if text is not None:
        return f"nothing matched {text!r}"
    return f"no {idle_ms:g} ms of silence" if idle_ms is not None else "the command did not end"


def _ask(place: Place, terminal: str, frame: bytes) -> None:
    try:
        place.ask(lambda client: client.ask(frame))
    except InitRefused as refusal:
        raise unknown_terminal(refusal, place, terminal) from refusal
