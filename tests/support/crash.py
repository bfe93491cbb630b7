"""Run an operation in its own process that is killed, or made to fail, at a chosen step.

Started as a program: ``python crash.py STATE_DIR SESSION KILL_AT VERB ARGUMENT…``. KILL_AT is the number of
the step at whose start the process kills itself with SIGKILL, so none of our code can run afterwards.
"""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

from waypoint.cli.main import main
from waypoint.log import step_observers

__all__ = ["fail_at", "killed_at", "start_command"]


class fail_at:
    """Make the ``number``-th step of the block raise OSError; ``reached`` names it, and is empty if there was none."""

    def __init__(self, number: int) -> None:
        self.reached = ""
        self._left = number

    def __enter__(self) -> "fail_at":
        step_observers.append(self._observe)
        return self

    def __exit__(self, *_: object) -> None:
        step_observers.remove(self._observe)

    def _observe(self, operation: str, step: str) -> None:
        if self._left == 0:
            self.reached = f"{operation}/{step}"
            self._left -= 1
            raise OSError(5, "made to fail by the test", step)
        self._left -= 1


def start_command(state_dir: Path, kill_at: int, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a command line in a process that kills itself at step ``kill_at`` (never, if negative)."""
    command = [sys.executable, __file__, str(kill_at), "--state-dir", str(state_dir), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed_at(state_dir: Path, kill_at: int, *arguments: str) -> bool:
    """Run the command line to its end; return whether it was killed. If it fails by itself, the test fails."""
    with start_command(state_dir, kill_at, *arguments) as process:
        output, _ = process.communicate(timeout=120)
    if process.returncode == -signal.SIGKILL:
        return True
    assert process.returncode == 0, output.decode()
    return False


def _run_and_die(argv: list[str]) -> int:
    kill_at = int(argv[0])
    count = itertools.count()

    def observe(_operation: str, _step: str) -> None:
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    step_observers.append(observe)
    return main(argv[1:])


if __name__ == "__main__":
    sys.exit(_run_and_die(sys.argv[1:]))
