"""``waypoint exec`` as agents type it, with next to nothing imported.

Only the plain form is read here; the full grammar handles help, ``--json``, ``--timings`` and everything else.
"""

from __future__ import annotations

import os
import sys

from waypoint.cli.failure import guarded
from waypoint.config import CHECKPOINT_LITE, WAYPOINT, config_files, find_state_dir
from waypoint.errors import BadSyntax, UsageError
from waypoint.names import MAIN, parse_name
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import run_command
from waypoint.store.live import LiveCatalogue, catalogue_path, require_set_up

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from waypoint.kernel.processes.bash_syntax import SyntaxCheck
    from waypoint.session.commands.exec import CommandResult

__all__ = [
    "EndingInNewline",
    "ExecRequest",
    "begin_check",
    "command_text",
    "parse_exec",
    "print_limits",
    "refuse_bad_syntax",
    "run_exec",
    "state_dir_in_force",
    "write_output",
]

_WITH_VALUE = ("--state-dir", "--timeout")
_PLAIN = ("--no-wait", "--quiet", "-q")


class ExecRequest:
    """What the command line asks for; ``is_older`` if it is in older command words (waypoint.cli.older)."""

    __slots__ = ("command", "is_older", "program", "state_dir", "target", "timeout_s", "wait")

    def __init__(
        self, target: str, command: str, *, state_dir: str | None, timeout_s: float | None, wait: bool
    ) -> None:
        self.program = WAYPOINT
        self.is_older = False
        self.target = target
        self.command = command
        self.state_dir = state_dir
        self.timeout_s = timeout_s
        self.wait = wait


def parse_exec(words: Sequence[str], program: str = WAYPOINT) -> ExecRequest | None:
    """Read a plain exec, in current or older words; None if it is anything else."""
    request = _parse(words)
    is_older = program == CHECKPOINT_LITE
    if request is None and ("exec" in words or "fork-exec" in words):
        from waypoint.cli.older import translate_exec

        try:
            translated = translate_exec(words)
        except UsageError:  # the full grammar reports it
            return None
        if translated is not None:
            request, is_older = _parse(translated.words), True
    if request is not None:
        request.is_older, request.program = is_older, program
    return request


def _parse(words: Sequence[str]) -> ExecRequest | None:
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
    """One word is shell text; several are the words of one command and are quoted."""
    if len(words) == 1:
        return words[0]
    import shlex

    return shlex.join(words)


def run_exec(request: ExecRequest) -> int:
    """Print the command's output as it comes and return its exit code."""
    return guarded(lambda: _run(request), verb="exec", is_older=request.is_older)


def state_dir_in_force(flag: str | None, program: str) -> str:
    """The state directory that a command line acts on, by flag, environment or configuration file."""
    files = config_files(os.environ, program=program, executable=sys.argv[0])
    return find_state_dir(flag, environ=os.environ, files=files, program=program)


def _run(request: ExecRequest) -> int:
    state_dir = state_dir_in_force(request.state_dir, request.program)
    session, colon, branch = request.target.partition(":")
    parse_name("session", session)
    branch = parse_name("branch", branch) if colon else MAIN
    require_set_up(state_dir)
    check = begin_check(request.command) if request.is_older else None
    catalogue = LiveCatalogue(catalogue_path(state_dir))
    write: Callable[[bytes], None] = write_output
    try:
        if check is not None:
            refuse_bad_syntax(check, lambda: _shell_of(catalogue, session))
            write = EndingInNewline()
        if catalogue.has_unfinished():
            _recover_abandoned(state_dir)
        result = run_command(
            BranchAddress(state_dir, catalogue, catalogue.session_id(session), branch),
            request.command,
            timeout_s=request.timeout_s,
            wait=request.wait,
            on_output=write,
        )
    finally:
        catalogue.close()
        if isinstance(write, EndingInNewline):
            write.end()
    print_limits(result)
    return result.exit_code


def begin_check(command: str) -> SyntaxCheck:
    """Start to check the syntax of an older command line: it is refused as a whole, before any of it runs."""
    from waypoint.kernel.processes.bash_syntax import SyntaxCheck

    return SyntaxCheck(command)


def refuse_bad_syntax(check: SyntaxCheck, shell: Callable[[], str | None]) -> None:
    """Raise BadSyntax if the command is not valid bash, and bash is the shell that it is for."""
    complaint = check.complaint()
    if complaint and (shell() or "bash").rpartition("/")[2] == "bash":  # in another shell it may be valid
        raise BadSyntax(f"command syntax error: {complaint}")


def _shell_of(catalogue: LiveCatalogue, session: str) -> str | None:
    import json

    shell: str | None = json.loads(catalogue.settings_text(catalogue.session_id(session))).get("shell")
    return shell


def _recover_abandoned(state_dir: str) -> None:
    """Open the full Waypoint: of the unfinished operations it recovers those whose process died."""
    from pathlib import Path

    from waypoint.session.waypoint import Waypoint

    Waypoint(Path(state_dir)).close()


def print_limits(result: CommandResult) -> None:
    """Print which limits were reached, after the output."""
    for limit in result.limits_reached:
        print(f"waypoint: {limit}", file=sys.stderr)


class EndingInNewline:
    """Writes output as it comes, and at the end the newline that it lacks, as older scripts expect."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = b""

    def __call__(self, data: bytes) -> None:
        self._last = data[-1:] or self._last
        write_output(data)

    def end(self) -> None:
        if self._last not in (b"", b"\n"):
            write_output(b"\n")


def write_output(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
