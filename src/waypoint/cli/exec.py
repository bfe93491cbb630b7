"""``waypoint exec`` as agents type it, with next to nothing imported.

Only the plain form is read here; help, ``--json``, ``--timings`` and everything that is not understood are left
to the full grammar.
"""

from __future__ import annotations

import os
import sys

from waypoint.cli.failure import guarded
from waypoint.config import config_files, find_state_dir
from waypoint.names import MAIN, parse_name
from waypoint.session.command import run_command
from waypoint.session.place import Place
from waypoint.store.live import LiveCatalogue, catalogue_path, require_set_up

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ExecRequest", "command_text", "parse_exec", "run_exec", "write_output"]

_WITH_VALUE = ("--state-dir", "--timeout")
_PLAIN = ("--no-wait", "--quiet", "-q")


class ExecRequest:
    """What the command line asks for."""

    __slots__ = ("command", "state_dir", "target", "timeout_s", "wait")

    def __init__(
        self, target: str, command: str, *, state_dir: str | None, timeout_s: float | None, wait: bool
    ) -> None:
        self.target = target
        self.command = command
        self.state_dir = state_dir
        self.timeout_s = timeout_s
        self.wait = wait


def parse_exec(words: Sequence[str]) -> ExecRequest | None:
    """Read a plain exec; None if it is anything else."""
    if "exec" not in words or "--" not in words:
        return None
    cut = words.index("--")
    names: list[str] = []
    options: dict[str, str] = {}
    left = iter(words[:cut])
    for word in left:
        name, equals, value = word.partition("=")
        if name in _WITH_VALUE:
            options[name] = value if equals else next(left, "")
        elif word in _PLAIN:
            options[word] = ""
        else:
            names.append(word)
    command = words[cut + 1 :]
    if len(names) != 2 or names[0] != "exec" or names[1].startswith("-") or not command:
        return None
    try:
        timeout_s = float(options["--timeout"]) if "--timeout" in options else None
    except ValueError:
        return None
    return ExecRequest(
        names[1],
        command_text(command),
        state_dir=options.get("--state-dir"),
        timeout_s=timeout_s,
        wait="--no-wait" not in options,
    )


def command_text(words: Sequence[str]) -> str:
    """One word is shell text; several are the words of one command and are kept apart."""
    if len(words) == 1:
        return words[0]
    import shlex

    return shlex.join(words)


def run_exec(request: ExecRequest) -> int:
    """Print the command's output as it comes and return its exit code."""
    return guarded(lambda: _run(request), is_exec=True)


def _run(request: ExecRequest) -> int:
    state_dir = find_state_dir(request.state_dir, environ=os.environ, files=config_files(os.environ))
    session, colon, branch = request.target.partition(":")
    parse_name("session", session)
    branch = parse_name("branch", branch) if colon else MAIN
    require_set_up(state_dir)
    catalogue = LiveCatalogue(catalogue_path(state_dir))
    try:
        if catalogue.has_unfinished():
            _settle(state_dir)
        result = run_command(
            Place(state_dir, catalogue, catalogue.session_id(session), branch),
            request.command,
            timeout_s=request.timeout_s,
            wait=request.wait,
            on_output=write_output,
        )
    finally:
        catalogue.close()
    return result.exit_code


def _settle(state_dir: str) -> None:
    """Let the engine look at what is begun: under way, or left by a process that died."""
    from pathlib import Path

    from waypoint.session.waypoint import Waypoint

    Waypoint(Path(state_dir)).close()


def write_output(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
