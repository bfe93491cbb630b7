"""Scripts of users, written as what a terminal shows: run by a real shell, and compared line by line.

A line that begins with ``$ `` is a command, ``> `` continues it; the lines below are what it prints to standard
output, and ``[N]`` is its exit code if that is not 0. A line ``…`` stands for any lines. Ids, process numbers, times
and directories are masked.
"""

import os
import re
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path
from textwrap import dedent

from support.command_line import Cli

__all__ = ["BIN", "check_transcript", "difference", "masked", "run_script", "transcript_script"]

BIN = Path(sys.executable).parent
TIMEOUT_S = 240.0


def check_transcript(cli: Cli, transcript: str, *, env: dict[str, str] | None = None) -> None:
    """Run the commands of ``transcript`` in one shell, in $HOME; they must print exactly the lines below them."""
    expected = dedent(transcript).strip()
    ended = run_script(cli, transcript_script(expected), env=env)
    different = difference(expected, ended.stdout, cli)
    assert not different, f"{different}\n{ended.stderr}"


def run_script(
    cli: Cli, script: str, *, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in $HOME, as a user with our commands in PATH. Nothing in it may show a Python traceback."""
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=cli.env["HOME"],
        env={**cli.env, "PATH": f"{BIN}:{cli.env['PATH']}", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


def transcript_script(transcript: str) -> str:
    """A shell script that prints each command of ``transcript``, then runs it."""
    commands: list[str] = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif line.startswith("> "):
            commands[-1] += f"\n{line[2:]}"
    return "\n".join(
        f'echo {_quoted(_shown(command))}\n{command}\ncode=$?; [ $code = 0 ] || echo "[$code]"'
        for command in commands
    )


def difference(expected: str, seen: str, cli: Cli) -> str:
    """What of ``seen`` is not as ``expected``, for people; nothing if all is."""
    wanted, printed = masked(expected, cli).splitlines(), masked(seen, cli).splitlines()
    pattern = "".join(r"(.*\n)*" if line == "…" else f"{re.escape(line)}\n" for line in wanted)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)):
        return ""
    return "\n".join(unified_diff(wanted, printed, "expected", "seen", lineterm=""))


def _shown(command: str) -> str:
    return "$ " + command.replace("\n", "\n> ")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def masked(text: str, cli: Cli) -> str:
    """Mask what differs from run to run, and drop empty lines."""
    for pattern, mask in (
        (f"{re.escape(os.fspath(cli.state_dir))}|/var/lib/waypoint", "STATE"),
        (rf"{re.escape(cli.env['HOME'])}|(?<!\w)/root\b", "HOME"),
        (r"\b[0-9a-f]{16}\b", "ID"),
        (r"(\bpid=|\bPID: |/proc/)\d+", r"\1N"),
        (r"=\d+\.\d+(ms)?\b", r"=T\1"),
        (r",\d+$", ",N"),
        (r"\d+[smh] ago", "AGO"),
        (r"[\d.]+ [KM]iB", "SIZE"),
    ):
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if line)
