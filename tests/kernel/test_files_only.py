"""Files-only checkpoints: what they keep, what starts afresh, and how they mix with full ones."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from support.crash import fail_at, killed_at, start_command
from support.limited import MakeLimited
from waypoint import Session, Waypoint
from waypoint.cli.text_tree import draw_tree
from waypoint.errors import EngineError
from waypoint.model import CheckpointKind, Limits
from waypoint.store.lock import locked

COUNTING = "touch one two; while :; do echo >>one; echo >>two; done & true"


def test_a_restore_brings_back_the_files_and_starts_a_new_shell(session: Session, workspace: Path) -> None:
    session.exec("x=gone; cd /; echo kept >/root/note; sleep 1000 & sleep 1000 &")
    saved = session.snapshot("files", files_only=True)
    assert (saved.kind, saved.memory_bytes) == (CheckpointKind.FILES, 0)
    assert session.exec("echo $x").output == "gone\n"  # the branch itself keeps running
    session.exec("echo later >/root/note; rm /dev/null; touch /tmp/made")
    session.restore("files")
    state = session.exec('echo "[$x] $(pwd) $(cat /root/note) $(jobs -p | wc -l) $(ls /tmp | grep -c made)"')
    assert state.output == f"[] {workspace} kept 0 0\n"
    assert session.exec("echo >/dev/null && ls /.waypoint").exit_code == 0


def test_both_kinds_of_checkpoint_mix_in_one_tree(session: Session) -> None:
    session.exec("x=whole; echo 1 >/root/note")
    session.snapshot("whole")
    session.exec("echo 2 >/root/note")
    files = session.snapshot("files", files_only=True)
    [fork] = session.fork("files", ids=["side"])
    assert fork.exec("echo [$x] $(cat /root/note)").output == "[] 2\n"
    fork.exec("x=side; echo 3 >/root/note")
    later = fork.snapshot("later")
    assert later.parent == files.id
    session.restore("later")
    assert session.exec("echo $x $(cat /root/note)").output == "side 3\n"
    session.restore("whole")
    assert session.exec("echo $x $(cat /root/note)").output == "whole 1\n"
    drawn = draw_tree(session.status())
    assert "● files  no processes" in drawn
    assert "● whole  memory" in drawn


def test_files_are_saved_at_one_point_while_being_written(session: Session) -> None:
    """A program writes one file after the other; the second must never be newer than the first."""
    session.exec(COUNTING)
    for number in range(5):
        session.snapshot(f"point-{number}", files_only=True)
    for number in range(5):
        [fork] = session.fork(f"point-{number}")
        one, two = map(int, fork.exec("wc -l <one; wc -l <two").output.split())
        assert one - two in (0, 1)
        fork.destroy()
    assert session.exec("jobs -p | wc -l").output == "1\n"


def test_damage_to_our_own_files_in_the_branch_does_not_matter(session: Session) -> None:
    # from outside, because the shell could not report the end of such a command
    shutil.rmtree(session.directory / ".waypoint")
    os.symlink("/etc", session.directory / ".waypoint")
    for name in ("null", "tty"):
        os.unlink(session.directory / "dev" / name)
    session.snapshot("odd", files_only=True)
    [fork] = session.fork("odd")
    assert fork.exec("echo >/dev/null; ls -d /etc/sock /.waypoint").output.splitlines()[-1] == "/.waypoint"
    assert not os.path.exists("/etc/sock")


def test_a_shell_whose_directory_was_removed_starts_at_the_root(session: Session, workspace: Path) -> None:
    session.exec(f"cd /; rm -rf {workspace}")
    session.snapshot("without", files_only=True)
    session.restore("without")
    assert session.exec("pwd").output == "/\n"


def test_the_disk_usage_after_a_restore_is_the_same(limited: MakeLimited) -> None:
    session = limited(Limits(disk_bytes=64 << 20, memory_bytes=256 << 20, pids=64))
    session.exec("head -c 40M /dev/urandom >/root/big")
    session.snapshot("files", files_only=True)
    session.restore("files")
    refused = session.exec("head -c 40M /dev/urandom >/root/more")
    assert refused.exit_code != 0
    assert [limit.name for limit in refused.limits_reached] == ["disk"]
    assert session.main.usage()["pids"] >= 2


def test_a_failure_at_any_step_keeps_the_branch_running(session: Session) -> None:
    session.snapshot("files", files_only=True)
    acts: list[Callable[[int], object]] = [
        lambda number: session.snapshot(f"try-{number}", files_only=True),
        lambda _number: session.restore("files"),
    ]
    for act in acts:
        session.exec("x=here")
        reached = []
        for number in range(12):
            with fail_at(number) as failure:
                try:
                    act(number)
                except EngineError:
                    assert failure.reached
            if not failure.reached:
                break
            reached.append(failure.reached)
            if failure.reached == "restore/retire":
                Waypoint(session.context.layout.state_dir).close()
                continue
            assert session.exec("echo $x").output == "here\n"
        assert len(reached) >= 5
    assert session.checkpoints()[0].name == "files"


def test_a_killed_caller_never_leaves_the_branch_stopped(session: Session, state_dir: Path) -> None:
    session.exec(COUNTING)
    killed = 0
    for number in range(12):
        if not killed_at(state_dir, number, "snapshot", session.id, f"try-{number}", "--files-only"):
            break
        killed += 1
        _assert_goes_on(session)
        _wait_for_guard(session)
        with Waypoint(state_dir) as again:
            assert again.context.catalogue.unfinished() == []
            assert [saved.name for saved in again.session(session.id).checkpoints()] == []
    assert killed >= 5
    with start_command(state_dir, -1, "snapshot", session.id, "other", "--files-only") as process:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    _assert_goes_on(session)


def _wait_for_guard(session: Session) -> None:
    """Wait for the guard, which thaws a branch for its dead caller and holds the branch's lock until then."""
    with locked(session.context.branch_lock(session.id, "main"), what="main"):
        pass


def _assert_goes_on(session: Session) -> None:
    """Check without running a command: nobody may be there to type one."""
    path = session.directory / session.record.workspace.lstrip("/") / "one"
    before = path.stat().st_size
    deadline = time.monotonic() + 30
    while path.stat().st_size == before:
        assert time.monotonic() < deadline, "the branch does not run"
        os.sched_yield()
