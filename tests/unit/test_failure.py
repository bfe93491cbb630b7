"""Errors as the user sees them."""

import pytest

from waypoint.cli.failure import report_error
from waypoint.errors import EngineError, ForkIncomplete

INCOMPLETE = ForkIncomplete(["a"], {"b": EngineError("no room"), "c": EngineError("too late")})


def test_an_older_fork_command_prints_a_line_for_each_failed_branch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_error(INCOMPLETE, verb="fork", is_older=True) == 1
    assert capsys.readouterr().out == "Error creating fork: b: no room\nError creating fork: c: too late\n"


def test_in_our_own_command_they_are_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(INCOMPLETE, verb="fork", is_older=False) == INCOMPLETE.exit_code == 6
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        "waypoint: error: 2 of 3 branches could not be made: b: no room; c: too late\n"
    )
