"""A branch is parked, that is saved and removed, in one operation."""

import os
from pathlib import Path

import pytest

from support.crash import fail_at, killed_at
from support.waiting import wait_until
from waypoint import Branch, Session, Waypoint
from waypoint.errors import EngineError, NotFound, UsageError
from waypoint.store.lock import locked

STATE = 'echo "$x $(cat /tmp/note) $(jobs -p | wc -l)"'


@pytest.fixture
def side(session: Session) -> Branch:
    session.snapshot("root")
    [side] = session.fork("root", ids=["side"])
    side.exec("x=kept; echo kept >/tmp/note; sleep 1000 & true")
    return side


def test_a_parked_branch_can_be_forked_again_under_its_name(session: Session, side: Branch) -> None:
    record = side.record
    parked = side.park("idea")
    assert [branch.name for branch in session.branches()] == ["main"]
    assert not session.context.is_running(record)
    with pytest.raises(NotFound):
        side.exec("true")
    [again] = session.fork("idea", ids=["side"])
    assert again.exec(STATE).output == "kept kept 1\n"
    assert again.record.head == parked.id
    assert again.park().name == "checkpoint-1"


def test_main_cannot_be_parked(session: Session) -> None:
    with pytest.raises(UsageError, match="main") as refused:
        session.main.park("no")
    assert "waypoint suspend" in refused.value.hint
    assert session.exec("echo here").output == "here\n"


def test_a_parked_branch_does_nothing_after_its_checkpoint(session: Session, side: Branch) -> None:
    side.exec("cd /tmp; while :; do echo >>count; done & true")
    wait_until(side, "[ -s count ]")
    layer = session.context.layout.layer(side.record.incarnation)
    with open(layer / "upper/tmp/count") as live:  # an open file outlives the branch
        parked = side.park("idea")
        saved = session.context.layout.checkpoint_layer(parked.id) / "upper/tmp/count"
        assert os.fstat(live.fileno()).st_size == saved.stat().st_size > 0


def test_a_failure_at_any_step_keeps_the_branch_running_or_parks_it(session: Session, side: Branch) -> None:
    reached = []
    for number in range(12):
        with fail_at(number) as failure:
            try:
                session.branch("side").park(f"try-{number}")
            except EngineError:
                assert failure.reached
        if not failure.reached:
            break
        reached.append(failure.reached)
        if session.context.catalogue.unfinished():  # published: the next command finishes the removal
            Waypoint(session.context.layout.state_dir).close()
            assert [branch.name for branch in session.branches()] == ["main"]
            session.fork(f"try-{number}", ids=["side"])
        assert session.branch("side").exec(STATE).output == "kept kept 1\n"
    assert len(reached) >= 7


def test_a_killed_park_is_undone_or_finished(session: Session, side: Branch, state_dir: Path) -> None:
    killed, parked = 0, 0
    for number in range(12):
        verb = ("park", f"{session.id}:side", f"try-{number}")
        if not killed_at(state_dir, number, *verb):
            break
        killed += 1
        # wait for CRIU or the guard
        with locked(session.context.branch_lock(session.id, "side"), what="side"):
            pass
        with Waypoint(state_dir) as waypoint:
            again = waypoint.session(session.id)
            assert waypoint.context.catalogue.unfinished() == []
            if len(again.branches()) == 1:
                parked += 1
                again.fork(f"try-{number}", ids=["side"])
            assert again.branch("side").exec(STATE).output == "kept kept 1\n"
    assert killed >= 7
    assert parked >= 1
