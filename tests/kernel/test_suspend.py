"""A suspended session is only on disk, and is restored as it was."""

import os
import socket
from pathlib import Path

import pytest

from support.crash import fail_at, killed_at
from support.leaks import look_at_host
from support.small_root import make_small_root
from support.waiting import DEADLINE_S, wait_for
from waypoint import Session, Waypoint
from waypoint.cli.text_tree import draw_tree
from waypoint.errors import BaseGone, Broken, EngineError, NotFound, Suspended
from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.session.status import BranchState
from waypoint.store.lock import locked
from waypoint.store.pool import unmount_pool

STATE = 'echo "$x $(cat /tmp/note) $(jobs -p | wc -l)"'
SERVER = 'python3 -c \'import socketserver as s\nclass H(s.BaseRequestHandler):\n n=0\n def handle(self):\n  H.n+=1;self.request.sendall(b"%d" % H.n)\ns.TCPServer(("127.0.0.1",8000),H).serve_forever()\' & while ! (: <>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do :; done'


@pytest.fixture
def two(session: Session) -> Session:
    """A session with two different branches."""
    session.exec("x=main; echo main >/tmp/note; sleep 1000 & true")
    session.snapshot("point")
    [side] = session.fork("point", ids=["side"])
    side.exec("x=side; echo side >/tmp/note")
    session.exec("x=later")
    return session


@pytest.mark.quick
def test_nothing_of_a_suspended_session_runs_and_resume_restores_everything(
    two: Session, state_dir: Path
) -> None:
    before = look_at_host(state_dir)
    points = two.suspend()
    assert [point.name for point in points] == ["suspended-main-1", "suspended-side-2"]
    held = look_at_host(state_dir)
    assert (held.mounts, held.cgroups, held.processes) == (
        frozenset({f"{state_dir}/pool"}),
        frozenset(),
        frozenset(),
    )
    assert before.cgroups
    with pytest.raises(Suspended, match="main") as refused:
        two.exec("true")
    assert f"waypoint resume {two.id}" in refused.value.hint
    for refuse in (
        two.snapshot,
        two.terminals,
        lambda: two.fork("main"),
        lambda: two.read_file("/etc/passwd"),
        lambda: two.main.expose(8000),
        lambda: two.branch("side").park(),
    ):
        with pytest.raises(Suspended):
            refuse()
    assert two.suspend() == []
    assert [branch.record.init_pid for branch in two.branches()] == [0, 0]
    assert [branch.state for branch in two.status().branches] == [BranchState.SUSPENDED] * 2
    assert draw_tree(two.status()).count("  suspended") == 2
    assert [branch.name for branch in two.resume()] == ["main", "side"]
    assert two.exec(STATE).output == "later main 1\n"
    assert two.branch("side").exec(STATE).output == "side side 1\n"
    assert two.resume() == []


def test_a_suspended_session_can_be_resumed_after_a_reboot(two: Session, state_dir: Path) -> None:
    two.suspend()
    unmount_pool(state_dir)
    two.context.platform.criu.kdat.unlink()
    assert not any(mount.path.startswith(str(state_dir)) for mount in read_mounts())
    with Waypoint(state_dir) as waypoint:
        again = waypoint.session(two.id)
        assert [branch.is_running() for branch in again.branches()] == [False, False]
        again.resume()
        assert again.exec(STATE).output == "later main 1\n"
        assert again.branch("side").exec(STATE).output == "side side 1\n"


def test_unsaved_changes_can_be_given_up(two: Session) -> None:
    [head] = two.suspend(drop=True)
    assert head.name == "point"
    two.resume()
    for branch in two.branches():
        assert branch.exec(STATE).output == "main main 1\n"


def test_a_session_that_was_never_saved_starts_afresh(session: Session, workspace: Path) -> None:
    session.exec("x=lost; echo lost >/root/note")
    assert session.suspend(drop=True) == []
    session.resume()
    assert session.exec("echo [$x] $(pwd); ls /root/note").output.startswith(f"[] {workspace}\n")
    assert session.exec("test -e /root/note").exit_code == 1


def test_checkpoints_of_a_suspended_session_can_be_forked_and_restored(two: Session) -> None:
    two.suspend()
    [third] = two.fork("point", ids=["third"])
    assert third.exec(STATE).output == "main main 1\n"
    two.restore("point")
    assert two.exec(STATE).output == "main main 1\n"
    two.destroy("side")
    with pytest.raises(NotFound):
        two.branch("side")
    assert two.resume() == []


def test_resume_exposes_the_ports_again(session: Session) -> None:
    session.exec(SERVER)
    port = session.main.expose(8000).host_port
    assert _ask(port) == b"2"
    session.suspend()
    with pytest.raises(OSError, match="refused"):
        _ask(port)
    assert [exposed.is_listening for exposed in session.ports()] == [False]
    session.resume()
    assert [exposed.is_listening for exposed in session.ports()] == [True]
    assert _ask(port) == b"3"


def _ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as asked:
        return asked.recv(100)


def test_a_missing_base_is_reported(waypoint: Waypoint, tmp_path: Path, leaves_nothing_behind: None) -> None:
    root = make_small_root(tmp_path / "root")
    over = waypoint.create(base=root, shell="sh")
    try:
        over.exec("x=main")
        over.suspend()
        root.rename(tmp_path / "elsewhere")
        with pytest.raises(BaseGone, match=f"{root}, the base of session {over.id}, is gone"):
            over.resume()
        (tmp_path / "elsewhere").rename(root)
        over.resume()
        assert over.exec("echo $x").output == "main\n"
    finally:
        over.cleanup(force=True)


def test_a_dead_branch_is_not_counted_as_saved(two: Session) -> None:
    side = two.branch("side")
    two.context.platform.cgroup(side.record.incarnation).kill()
    with pytest.raises(Broken, match="side") as refused:
        two.suspend()
    assert "--drop" in refused.value.hint
    assert two.exec(STATE).output == "later main 1\n"
    two.suspend(drop=True)
    two.resume()
    assert side.exec(STATE).output == "main main 1\n"


def test_a_failure_before_all_branches_are_saved_keeps_all_running(two: Session, state_dir: Path) -> None:
    reached = []
    for number in range(24):
        with fail_at(number) as failure:
            try:
                two.suspend()
            except EngineError:
                assert failure.reached
        if not failure.reached:
            break
        reached.append(failure.reached)
        if two.context.catalogue.unfinished():
            Waypoint(state_dir).close()
            assert two.is_suspended
        if two.is_suspended:
            two.resume()
        assert two.exec(STATE).output == "later main 1\n"
        assert two.branch("side").exec(STATE).output == "side side 1\n"
    assert len(reached) >= 12


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_the_next_command_repairs_a_killed_suspend_or_resume(
    two: Session, state_dir: Path, verb: str
) -> None:
    """It is killed at every third step, because each kill costs a start of Python and of both branches."""
    killed = 0
    for number in range(1, 24, 3):
        if verb == "resume" and not two.is_suspended:
            two.suspend()
        if not killed_at(state_dir, number, verb, two.id):
            break
        killed += 1
        for name in ("main", "side"):  # CRIU may still be working for its dead caller
            with locked(two.context.branch_lock(two.id, name), what=name):
                pass
        with Waypoint(state_dir) as waypoint:
            again = waypoint.session(two.id)
            assert waypoint.context.catalogue.unfinished() == []
            for branch in again.branches():
                assert branch.is_running() is not branch.record.is_suspended
                assert os.path.lexists(branch.directory) is branch.is_running()
            if any(branch.record.is_suspended for branch in again.branches()):
                again.resume()
            assert again.exec(STATE).output == "later main 1\n"
            assert again.branch("side").exec(STATE).output == "side side 1\n"
    assert killed >= 3


def test_a_follower_of_a_command_gets_an_error_for_the_suspension(two: Session, state_dir: Path) -> None:
    job = two.start("sleep 1000")
    two.suspend()
    with pytest.raises(Suspended):
        job.wait()
    two.resume()


def test_suspend_ends_the_background_process_of_a_session_and_resume_starts_it(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None
) -> None:
    session = waypoint.create(workspace, allow_self=True)
    try:
        session.suspend()
        wait_for(lambda: session.id not in run_tool(("ps", "-eo", "args"), timeout_s=DEADLINE_S).stdout)
        session.resume()
        assert session.exec("waypoint-here snapshot inside").exit_code == 0
    finally:
        session.cleanup(force=True)
