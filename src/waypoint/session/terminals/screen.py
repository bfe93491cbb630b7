"""Read what a terminal shows, and wait until it shows something. Needs the emulator, which few verbs do."""

import re
import time

from waypoint.errors import ShellError, UsageError, WaitTimedOut
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import checked_timeout
from waypoint.session.terminals.watch import Ended, Printed, TerminalView
from waypoint.shell.protocol import TerminalState
from waypoint.shell.rendering import searchable_text
from waypoint.shell.screen import Screen

__all__ = ["read_screen", "wait_for"]

SCROLLBACK_MAX = 1 << 20  # init keeps a MiB of output
WAIT_HISTORY = 2000  # lines that may scroll by between two looks at the screen


def read_screen(address: BranchAddress, terminal: str, scrollback: int = 0) -> Screen:
    """What the terminal shows now, and the last ``scrollback`` lines above it."""
    if not 0 <= scrollback <= SCROLLBACK_MAX:
        raise UsageError(f"a scrollback of {scrollback} lines is out of range", hint=f"0 to {SCROLLBACK_MAX}")
    with TerminalView(address, terminal, history=scrollback) as view:
        return view.screen(scrollback)


def wait_for(
    address: BranchAddress,
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
    if idle_ms is not None and not idle_ms >= 0:  # also "nan", a silence that would never be reached
        raise UsageError(f"a silence of {idle_ms} ms is out of range", hint="0 or more milliseconds")
    pattern = _pattern(text)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with TerminalView(address, terminal, history=WAIT_HISTORY) as view:
        quiet_since = time.monotonic()
        while True:
            now = time.monotonic()
            if pattern is not None and pattern.search(_text_since(view)):
                return view.screen()
            if exit and view.status.state in (TerminalState.PROMPT, TerminalState.DEAD):
                return view.screen()
            if idle_ms is not None and now - quiet_since >= idle_ms / 1000:
                return view.screen()
            if deadline is not None and now >= deadline:
                raise WaitTimedOut(
                    f"{_unmet_condition(text, idle_ms)} in terminal {terminal!r} of {address.where} in {timeout_s:g} s"
                )
            limits = [deadline, quiet_since + idle_ms / 1000 if idle_ms is not None else None]
            nearest = min((limit for limit in limits if limit is not None), default=None)
            for event in view.events(None if nearest is None else max(0.0, nearest - now)):
                if isinstance(event, Printed):
                    quiet_since = time.monotonic()
                if isinstance(event, Ended):
                    raise ShellError(f"terminal {terminal!r} of {address.where} was closed")


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text, re.MULTILINE)
    except re.error as error:
        raise UsageError(
            f"{text!r} is not a regular expression: {error}",
            hint="put a backslash before . * + ? ( ) [ ] to mean them",
        ) from error


def _text_since(view: TerminalView) -> str:
    """What the screen shows, and what has scrolled off it since we began to watch."""
    return searchable_text(view.screen(min(view.scrolled(), WAIT_HISTORY)))


def _unmet_condition(text: str | None, idle_ms: float | None) -> str:
    if text is not None:
        return f"nothing matched {text!r}"
    return f"no {idle_ms:g} ms of silence" if idle_ms is not None else "the command did not end"
