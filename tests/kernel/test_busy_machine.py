"""What must hold on a busy machine, where every process is preempted between any two steps."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint import Session, Waypoint

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def work() -> Iterator[None]:
    """Run more busy processes than there are processors."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(3 * (os.cpu_count() or 1))]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def test_a_new_session_answers_at_once_on_a_busy_machine(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None
) -> None:
    for _ in range(40):
        session = waypoint.create(workspace)
        assert session.exec("echo here").output == "here\n"
        session.cleanup()


def test_a_command_gets_and_keeps_the_modes_of_the_terminal(session: Session) -> None:
    """Init types the line that starts a command without echo; the command must not run before that mode has ended."""
    for _ in range(60):
        assert " echo " in session.exec("stty -a; stty -ixon").output
        assert " -ixon " in session.exec("stty -a; stty ixon").output


def test_a_fork_and_a_restored_branch_answer_at_once_on_a_busy_machine(session: Session) -> None:
    for number in range(5):
        session.exec(f"n={number}")
        saved = session.snapshot()
        session.exec("n=other")
        forks = session.fork(saved, n=2)
        session.restore(saved)
        assert [branch.exec("echo $n").output for branch in (session.main, *forks)] == [f"{number}\n"] * 3
        for fork in forks:
            fork.destroy()
