"""A session from its creation to its end."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.crash import start_command
from waypoint import Session, Waypoint
from waypoint.errors import Busy, UsageError


def test_the_shell_keeps_directory_and_variables_between_commands(session: Session) -> None:
    session.exec("cd /etc; export SEEN=yes; plain=also")
    assert session.exec("echo $PWD $SEEN $plain").output == "/etc yes also\n"


def test_a_restored_branch_is_back_at_the_saved_point(session: Session) -> None:
    session.exec("x=1; echo one >/tmp/note")
    session.snapshot("before")
    session.exec("x=2; echo two >/tmp/note; cd /")
    session.restore("before")
    assert session.exec("echo $x $(cat /tmp/note) $PWD").output == f"1 one {session.record.workspace}\n"


def test_a_forced_cleanup_waits_for_a_running_snapshot(
    waypoint: Waypoint, state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    for _ in range(8):  # each time at a different moment of the snapshot
        session = waypoint.create(workspace)
        session.exec("for i in 1 2 3 4 5 6 7 8; do sleep 99 & done")
        with Waypoint(state_dir) as other, ThreadPoolExecutor(1) as pool:
            saving = pool.submit(other.session(session.id).snapshot, "point")
            deadline = time.monotonic() + 30
            while not waypoint.context.catalogue.has_unfinished() and not saving.done():
                assert time.monotonic() < deadline
            session.cleanup(force=True)
            assert saving.exception(timeout=30) is None


def test_a_timeout_also_limits_the_wait_for_a_busy_shell(session: Session, state_dir: Path) -> None:
    with start_command(
        state_dir, -1, "exec", session.id, "--", "echo begun >/tmp/begun; sleep 30"
    ) as process:
        while not (session.directory / "tmp/begun").exists():
            assert process.poll() is None
        with pytest.raises(Busy, match="busy"):
            session.exec("true", timeout_s=0.2)
        process.kill()
        process.communicate(timeout=30)
    with pytest.raises(Busy, match="busy with job"):
        session.exec("true", timeout_s=0.2)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan"), 1e12])
def test_an_invalid_timeout_is_refused(session: Session, timeout_s: float) -> None:
    with pytest.raises(UsageError, match="timeout"):
        session.exec("echo run >/tmp/run", timeout_s=timeout_s)
    assert session.exec("ls /tmp/run 2>/dev/null").exit_code == 2


def test_a_command_that_is_too_long_or_not_text_is_refused(session: Session) -> None:
    assert session.exec("# " + "x" * ((1 << 20) - 2)).exit_code == 0
    for text in ("x" * ((1 << 20) + 1), "x" * (3 << 20), "\ud800"):
        with pytest.raises(UsageError):
            session.exec(text)
    assert session.exec("echo on").output == "on\n"
