"""Promoting a branch: 'main' continues as another branch, whatever happens in between."""

import os

import pytest

from support.crash import killed_at
from waypoint import Session, Waypoint
from waypoint.errors import Broken, NotFound, UsageError

STATE = 'echo "$who $(cat /tmp/note) $(jobs -p | wc -l)"'


@pytest.fixture
def branched(session: Session) -> Session:
    session.exec("who=main; echo main >/tmp/note")
    [best] = session.fork(session.snapshot("point"), ids=["best"])
    best.exec("who=best; echo best >/tmp/note; sleep 1000 & true")
    return session


def test_main_continues_as_the_promoted_branch_without_a_pause(branched: Session) -> None:
    best = branched.branch("best")
    pid, shell = best.record.init_pid, best.exec("echo $$").output
    main = best.promote()
    assert main.exec(STATE).output == "best best 1\n"
    assert main.record.init_pid == pid
    assert main.exec("echo $$").output == shell
    assert [branch.name for branch in branched.branches()] == ["main"]
    with pytest.raises(NotFound):
        branched.branch("best").exec("true")
    assert os.path.realpath(main.directory) == str(branched.context.layout.mount(main.record.incarnation))


def test_a_promoted_branch_can_be_saved_and_its_old_name_reused(branched: Session) -> None:
    branched.branch("best").promote()
    branched.snapshot("won")
    [again] = branched.fork("won", ids=["best"])
    assert again.exec(STATE).output == "best best 1\n"
    branched.restore("point")
    assert branched.exec(STATE).output == "main main 0\n"


def test_one_fork_can_be_promoted_over_another(branched: Session) -> None:
    branched.fork("point", ids=["other"])
    branched.branch("best").promote("other")
    assert {branch.name for branch in branched.branches()} == {"main", "other"}
    assert branched.branch("other").exec(STATE).output == "best best 1\n"
    assert branched.exec(STATE).output == "main main 0\n"


def test_an_invalid_promotion_is_refused_and_nothing_changes(branched: Session) -> None:
    with pytest.raises(UsageError):
        branched.main.promote("best")
    with pytest.raises(UsageError):
        branched.branch("best").promote("best")
    with pytest.raises(NotFound):
        branched.branch("nobody").promote()
    with pytest.raises(NotFound):
        branched.branch("best").promote("nobody")
    os.kill(branched.branch("best").record.init_pid, 9)
    branched.context.platform.cgroup(branched.branch("best").record.incarnation).kill()
    with pytest.raises(Broken, match="not running"):
        branched.branch("best").promote()
    assert branched.exec(STATE).output == "main main 0\n"


def test_a_promotion_killed_at_any_step_happens_completely_or_not_at_all(
    branched: Session, waypoint: Waypoint
) -> None:
    reference = f"{branched.id}:best"
    outcomes = []
    for step in range(6):
        was_killed = killed_at(branched.context.layout.state_dir, step, "promote", reference)
        with Waypoint(branched.context.layout.state_dir) as opened:  # recovers from the killed operation
            session = opened.session(branched.id)
            names = [branch.name for branch in session.branches()]
            outcomes.append(names)
            assert session.exec(STATE).output == ("best best 1\n" if names == ["main"] else "main main 0\n")
            assert opened.context.catalogue.unfinished() == []
            assert sorted(os.listdir(opened.context.layout.session(session.id))) == sorted(names)
            live = {branch.record.incarnation for branch in session.branches()}
            assert set(os.listdir(opened.context.layout.mount(""))) == live
            if names == ["main"] and was_killed:
                session.restore("point")
                [best] = session.fork("point", ids=["best"])
                best.exec("who=best; echo best >/tmp/note; sleep 1000 & true")
        if not was_killed:
            break
    assert ["main", "best"] in outcomes
    assert ["main"] in outcomes
