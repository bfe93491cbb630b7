"""Checkpoints and branches as a tree: deep, wide, and back and forth in it."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.leaks import look_at_host
from support.waiting import DEADLINE_S, wait_until
from waypoint import Branch, Session
from waypoint.errors import AlreadyExists, InvalidName, NotFound, UsageError, WaypointError


@pytest.mark.quick
def test_a_restored_branch_can_be_saved_again_and_again(session: Session) -> None:
    session.exec("n=0; sh -c 'until [ -e /tmp/go ]; do sleep 0.02; done; exit 5' &")
    for number in range(1, 5):
        session.exec(f"n=$((n + 1)); echo $n >>/tmp/log; cd /; mkdir -p /tmp/{number}; cd /tmp/{number}")
        saved = session.snapshot()
        session.exec("n=100; rm /tmp/log; cd /")
        session.restore(saved)
    assert session.exec("echo $n $PWD; cat /tmp/log").output == "4 /tmp/4\n1\n2\n3\n4\n"
    assert session.exec(": >/tmp/go; wait %1", timeout_s=DEADLINE_S).exit_code == 5


def test_each_fork_of_a_fork_keeps_its_own_state_to_depth_five(session: Session) -> None:
    line: list[Branch] = [session.main]
    session.exec("path=main; echo main >/tmp/path")
    for depth in range(1, 6):
        (fork,) = session.fork(line[-1], ids=[f"depth-{depth}"])
        fork.exec(f"path=$path/{depth}; echo {depth} >>/tmp/path")
        line.append(fork)
    expected = "main"
    for depth, branch in enumerate(line):
        expected += f"/{depth}" if depth else ""
        lines = expected.replace("/", "\n")
        assert branch.exec("echo $path; cat /tmp/path").output == f"{expected}\n{lines}\n"
    by_id = {checkpoint.id: checkpoint for checkpoint in session.checkpoints()}
    at, seen = line[-1].record.head, 0
    while at is not None:
        at, seen = by_id[at].parent, seen + 1
    assert seen == 5, "each checkpoint must record its parent"


def test_a_branch_can_be_restored_to_a_checkpoint_of_another_branch(session: Session) -> None:
    session.exec("who=root; touch /tmp/root")
    left, right = session.fork(session.snapshot("root"), ids=["left", "right"])
    left.exec("who=left; touch /tmp/left; (sleep 1000 & disown)")
    wait_until(left, "pgrep -x sleep >/dev/null")
    left.snapshot("of-left")
    right.exec("who=right; touch /tmp/right")
    right.snapshot("of-right")
    right.restore("of-left")
    assert (
        right.exec("echo $who; cd /tmp; ls -1d root left right 2>/dev/null; pgrep -c sleep").output
        == "left\nleft\nroot\n1\n"
    )
    left.restore("of-right")
    assert (
        left.exec("echo $who; cd /tmp; ls -1d root left right 2>/dev/null").output == "right\nright\nroot\n"
    )
    session.restore("of-left")
    assert session.exec("echo $who").output == "left\n"
    assert right.record.head == session.main.record.head


def test_a_fork_of_a_live_branch_saves_that_branch_first(session: Session) -> None:
    session.exec("x=live")
    before = session.checkpoints()
    assert before == []
    (by_handle,) = session.fork(session.main)
    (by_name,) = session.fork("main")
    assert [branch.exec("echo $x").output for branch in (by_handle, by_name)] == ["live\n", "live\n"]
    assert [branch.record.head for branch in (by_handle, by_name)] == [
        saved.id for saved in session.checkpoints()
    ]


@pytest.mark.quick
def test_four_forks_run_at_once_and_are_independent(session: Session) -> None:
    session.exec("n=1; echo start >/tmp/log")
    forks = session.fork(session.snapshot(), n=4)
    assert len({fork.name for fork in forks}) == 4
    pids = {fork.exec("echo $$").output for fork in forks}
    assert len(pids) == 1, "each has its own pid namespace, so the pids are equal"
    for number, fork in enumerate(forks):
        fork.exec(f"n={number}; echo {number} >>/tmp/log; sleep 100{number} &")
        wait_until(fork, "pgrep -x sleep >/dev/null")
    for number, fork in enumerate(forks):
        assert fork.exec("echo $n; cat /tmp/log; ps -eo args= | grep '^sleep'").output == (
            f"{number}\nstart\n{number}\nsleep 100{number}\n"
        )
    assert session.exec("echo $n; cat /tmp/log").output == "1\nstart\n"


def test_destroying_a_branch_keeps_the_others_and_its_checkpoints(session: Session, state_dir: Path) -> None:
    first, second = session.fork(session.snapshot(), ids=["first", "second"])
    alone = look_at_host(state_dir)
    first.exec("x=first; touch /tmp/first")
    first.snapshot("of-first")
    second.exec("x=second; sleep 1000 &")
    second.destroy()
    assert {branch.name for branch in session.branches()} == {"main", "first"}
    assert not (look_at_host(state_dir) - alone).processes
    with pytest.raises(NotFound, match="second"):
        second.exec("true")
    first.destroy()
    session.restore("of-first")
    assert session.exec("echo $x; ls /tmp/first").output == "first\n/tmp/first\n"
    (again,) = session.fork("of-first", ids=["first"])
    assert again.exec("echo $x").output == "first\n"


def test_the_branch_main_cannot_be_destroyed(session: Session) -> None:
    with pytest.raises(UsageError, match="main"):
        session.destroy("main")
    assert session.exec("echo alive").output == "alive\n"


TAKEN: dict[str, Callable[[Session], object]] = {
    "a checkpoint like a checkpoint": lambda session: session.snapshot("taken"),
    "a checkpoint like a branch": lambda session: session.snapshot("twig"),
    "a branch like a branch": lambda session: session.fork("taken", ids=["twig"]),
    "a branch like a checkpoint": lambda session: session.fork("taken", ids=["taken"]),
    "one of two branches": lambda session: session.fork("taken", ids=["free", "twig"]),
}


@pytest.mark.parametrize("act", TAKEN.values(), ids=TAKEN)
def test_names_are_unique_in_a_session_not(session: Session, act: Callable[[Session], object]) -> None:
    session.snapshot("taken")
    session.fork("taken", ids=["twig"])
    _assert_refused(session, partial(act, session), AlreadyExists)


UNKNOWN: dict[str, Callable[[Session], object]] = {
    "restore": lambda session: session.restore("nothing"),
    "fork": lambda session: session.fork("nothing"),
    "a branch": lambda session: session.branch("nothing"),
    "destroy": lambda session: session.destroy("nothing"),
}


@pytest.mark.parametrize("act", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_name_is_named_by(session: Session, act: Callable[[Session], object]) -> None:
    _assert_refused(session, partial(act, session), NotFound, match="'nothing'")


INVALID: dict[str, Callable[[Session, str], object]] = {
    "snapshot": lambda session, name: session.snapshot(name),
    "restore": lambda session, name: session.restore(name),
    "fork from": lambda session, name: session.fork(name),
    "fork to": lambda session, name: session.fork("saved", ids=[name]),
    "a branch": lambda session, name: session.branch(name),
    "destroy": lambda session, name: session.destroy(name),
}


@pytest.mark.parametrize("act", INVALID.values(), ids=INVALID)
def test_an_invalid_name_is_refused_before_anything_happens_by(
    session: Session, act: Callable[[Session, str], object]
) -> None:
    session.snapshot("saved")
    for name in ("../x", "", ".", "..", "a/b", "a:b", "-x", "x" * 65, "a\nb", "a\0b", "ä"):
        _assert_refused(session, partial(act, session, name), InvalidName)
    assert not os.path.lexists(session.directory.parent.parent / "x")


def test_each_of_a_hundred_checkpoints_in_a_row_can_be_restored(session: Session) -> None:
    session.exec("n=0")
    for number in range(1, 101):
        session.exec("n=$((n + 1)); echo $n >/tmp/n; touch /tmp/was-$n")
        session.snapshot(f"at-{number}")
    assert len(session.checkpoints()) == 100
    for number in (1, 50, 100):
        session.restore(f"at-{number}")
        assert (
            session.exec("echo $n; cat /tmp/n; ls /tmp/was-* | wc -l").output
            == f"{number}\n{number}\n{number}\n"
        )


def _assert_refused(
    session: Session, act: Callable[[], object], error: type[WaypointError], match: str | None = None
) -> None:
    """Check that ``act`` raises ``error``, changes no branch or checkpoint, and that main still answers."""

    def look() -> tuple[list[str], list[str], list[str]]:
        names = [branch.name for branch in session.branches()]
        return (
            names,
            [checkpoint.id for checkpoint in session.checkpoints()],
            sorted(os.listdir(session.directory.parent)),
        )

    before = look()
    with pytest.raises(error, match=match):
        act()
    assert look() == before
    assert session.exec("echo alive").output == "alive\n"
