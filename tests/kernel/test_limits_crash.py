"""At whatever step an operation on a session with limits fails or is killed, they apply again and nothing is left."""

from pathlib import Path

import pytest

from support.crash import fail_at, killed_at
from support.limited import MakeLimited, limits_in_force
from waypoint import Branch, Waypoint
from waypoint.errors import EngineError
from waypoint.model import Limits
from waypoint.store.lock import locked

STEPS_MAX = 12  # more steps than any operation has
ASKED = Limits(memory_bytes=64 << 20, cpus=0.5, pids=32, disk_bytes=64 << 20)
OPTIONS = ("--memory=64M", "--cpus=0.5", "--pids=32", "--disk=64M")


def assert_in_force(branch: Branch) -> None:
    found = limits_in_force(branch)
    assert (found.memory_bytes, found.cpus, found.pids) == (ASKED.memory_bytes, ASKED.cpus, ASKED.pids)
    assert found.disk_bytes is not None


def test_a_snapshot_that_fails_at_any_step_keeps_the_limits_in_force(limited: MakeLimited) -> None:
    session = limited(ASKED)
    reached = []
    for number in range(STEPS_MAX):
        with fail_at(number) as failure:
            try:
                session.snapshot()
            except EngineError:
                reached.append(failure.reached)
        if not failure.reached:
            break
        assert_in_force(session.main)
    assert "snapshot/files" in reached  # in the middle of the pause, while the limits are lifted


@pytest.mark.parametrize("verb", ["snapshot", "restore", "fork"])
def test_the_next_command_imposes_limits_that_a_killed_one_had_lifted(
    limited: MakeLimited, state_dir: Path, verb: str
) -> None:
    session = limited(ASKED)
    session.snapshot("point")
    for number in range(STEPS_MAX):
        arguments = {
            "snapshot": ["snapshot", session.id, f"try-{number}"],
            "restore": ["restore", session.id, "point"],
            "fork": ["fork", session.id, "point", "--id", f"try-{number}"],
        }[verb]
        if not killed_at(state_dir, number, *arguments):
            break
        # CRIU may still be at work for its dead caller; it holds the branch's lock until it has ended.
        with locked(session.context.branch_lock(session.id, "main"), what="main"):
            pass
        with Waypoint(state_dir) as again:
            for branch in again.session(session.id).branches():
                assert branch.exec("true").exit_code == 0
                assert_in_force(branch)
    assert number >= 5


def test_a_session_whose_creation_was_killed_leaves_nothing_of_its_limits(
    waypoint: Waypoint, state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    for number in range(STEPS_MAX):
        if not killed_at(state_dir, number, "init", str(workspace), "--name", "cut", *OPTIONS):
            break
        with Waypoint(state_dir) as again:
            assert again.sessions() == []
    assert number >= 4
    assert_in_force(waypoint.session("cut").main)
    waypoint.session("cut").cleanup()
