"""Modes and settings of the shell that could keep it from reporting the end of a command."""

from pathlib import Path

import pytest

from waypoint import Session, Waypoint
from waypoint.errors import ShellDied
from waypoint.model import Network


@pytest.mark.parametrize(
    "setting",
    [
        "set -u",
        "set -o posix",
        "set -f",
        "set -C",
        "unset PROMPT_COMMAND",
        "PROMPT_COMMAND='x=1'",
        "PROMPT_COMMAND=('x=1' 'y=2')",
        "printf() { :; }; read() { :; }",
        "alias printf=false read=false",
        "IFS=0123456789",
        "trap 'true' DEBUG",
        "exec 3>&1",
        "stty -echo; stty raw; stty sane",
        "PATH=",
    ],
)
def test_commands_end_with_their_status_whatever_the_settings_of_the_shell(
    session: Session, setting: str
) -> None:
    assert session.exec(setting, timeout_s=20).exit_code == 0
    assert session.exec("(exit 7)", timeout_s=20).exit_code == 7
    assert session.exec('echo "$?"', timeout_s=20).output == "7\n"


def test_under_errexit_a_failing_command_ends_the_shell_and_this_is_reported(session: Session) -> None:
    session.exec("set -e")
    assert session.exec("if false; then :; fi; echo on", timeout_s=20).output == "on\n"
    with pytest.raises(ShellDied, match="exited with status 1"):
        session.exec("false", timeout_s=20)


def test_the_history_contains_no_commands_of_waypoint(session: Session) -> None:
    session.exec("true")
    assert "waypoint" not in session.exec("history").output


def test_a_shell_with_line_editing_runs_one_command_after_another(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None
) -> None:
    session = waypoint.create(workspace, attended=True, network=Network())
    try:
        for number in range(60):
            assert session.exec(f"echo {number}").output.endswith(f"{number}\n")
    finally:
        session.cleanup(force=True)
