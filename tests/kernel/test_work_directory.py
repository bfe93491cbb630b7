"""The work directory: a mount on the host with the live files of 'main', whatever happens to the branch."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.crash import killed_at
from waypoint import Session, Waypoint
from waypoint.errors import AlreadyExists, UsageError


@pytest.fixture
def working(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[Session]:
    created = waypoint.create(workspace, work_dir=True)
    yield created
    if any(existing.id == created.id for existing in waypoint.sessions()):
        created.cleanup(force=True)


def work_of(session: Session) -> Path:
    assert session.work_directory is not None
    return session.work_directory


def test_the_work_directory_shows_the_workspace_and_follows_the_branch(
    working: Session, workspace: Path
) -> None:
    work = work_of(working)
    assert os.path.ismount(work)
    (work / "outside").write_text("from the host")
    working.exec("echo inside >inside; chmod u+s inside")
    assert (work / "inside").read_text() == "inside\n"
    assert working.exec("cat outside").output == "from the host"
    assert list(workspace.iterdir()) == []  # the real directory is never changed
    assert os.statvfs(work).f_flag & os.ST_NOSUID
    working.snapshot("point")
    (work / "outside").write_text("later")
    working.restore("point")
    assert (work / "outside").read_text() == "from the host"
    [side] = working.fork("point", ids=["side"])
    side.exec("echo side >outside")
    side.promote()
    assert (work / "outside").read_text() == "side\n"
    working.suspend()
    assert not os.path.ismount(work)
    assert list(work.iterdir()) == []
    working.resume()
    assert (work / "outside").read_text() == "side\n"
    with pytest.raises(AlreadyExists, match="work"):
        working.fork("point", ids=["work"])
    working.cleanup()
    assert not work.exists()


def test_the_work_directory_can_be_any_empty_directory(
    waypoint: Waypoint, workspace: Path, tmp_path: Path, leaves_nothing_behind: None
) -> None:
    directory = tmp_path / "here"
    with pytest.raises(UsageError, match="does not exist"):
        waypoint.create(workspace, work_dir=directory)
    directory.mkdir()
    (directory / "something").touch()
    with pytest.raises(UsageError, match="not empty"):
        waypoint.create(workspace, work_dir=directory)
    with pytest.raises(UsageError, match="not a directory"):
        waypoint.create(workspace, work_dir=directory / "something")
    (directory / "something").unlink()
    session = waypoint.create(workspace, work_dir=directory)
    try:
        session.exec("echo inside >inside")
        assert (directory / "inside").read_text() == "inside\n"
        with pytest.raises(UsageError, match=session.id):
            waypoint.create(workspace, work_dir=directory)
    finally:
        session.cleanup()
    assert list(directory.iterdir()) == []


def test_after_a_restore_without_a_workspace_nothing_is_mounted(working: Session, workspace: Path) -> None:
    working.snapshot("with")
    working.exec(f"cd /; rm -rf {workspace}")
    working.snapshot("without", files_only=True)
    working.restore("without")
    assert not os.path.ismount(work_of(working))
    working.restore("with")
    assert os.path.ismount(work_of(working))


def test_recovery_mounts_the_files_of_the_current_incarnation(working: Session, state_dir: Path) -> None:
    working.exec("echo saved >note")
    working.snapshot("point")
    killed = 0
    for number in range(4, 12):  # before that step, no new incarnation exists
        working.exec("echo later >note")
        if not killed_at(state_dir, number, "restore", working.id, "point"):
            break
        killed += 1
        with Waypoint(state_dir) as waypoint:
            again = waypoint.session(working.id)
            assert (work_of(again) / "note").read_text() == again.exec("cat note").output
    assert killed >= 3


def test_recovery_unmounts_the_work_directory_of_a_suspended_session(
    working: Session, state_dir: Path
) -> None:
    working.exec("echo saved >note")
    for verb, step in (("suspend", 6), ("resume", 6), ("suspend", 7), ("resume", 5)):
        assert killed_at(state_dir, step, verb, working.id)
        with Waypoint(state_dir) as waypoint:
            again = waypoint.session(working.id)
            assert os.path.ismount(work_of(again)) is not again.is_suspended
            if verb == "resume" and again.is_suspended:
                again.resume()
            elif verb == "suspend" and not again.is_suspended:
                again.suspend()
    assert (work_of(working) / "note").read_text() == "saved\n"


def test_a_killed_creation_leaves_no_mount(
    state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    made = 0
    for number in range(3, 12):
        is_killed = killed_at(state_dir, number, "init", str(workspace), "--work-dir")
        with Waypoint(state_dir) as waypoint:
            for session in waypoint.sessions():
                assert os.path.ismount(work_of(session))
                session.cleanup()
                made += 1
        if not is_killed:
            break
    assert made == 2  # cut off after it was published, and not cut off at all
