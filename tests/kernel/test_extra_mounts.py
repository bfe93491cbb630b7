"""A workspace on a separate file system: below ``/``, but not part of the host's root."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.leaks import sweep
from support.returning import return_after
from support.workload import assert_workload_survives
from support.workspace import new_workspace
from waypoint import Branch, Session, Waypoint
from waypoint.engine import checkpoint
from waypoint.engine.extra_mounts import find_mount_points
from waypoint.errors import BaseMountGone, EngineError
from waypoint.kernel.copy.confined import closing
from waypoint.kernel.storage.mounts import detach_all
from waypoint.kernel.syscalls import MNT_DETACH, clone_mount, mount, move_mount, unmount
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout
from workloads.watches import BASE_FILE


@pytest.fixture
def workspace(workspace: Path) -> Iterator[Path]:
    mount("tmpfs", workspace, "tmpfs", 0, "size=64m")
    try:
        (workspace / "kept").write_text("real\n")
        (workspace / "doomed").write_text("real\n")
        (workspace / "tree").mkdir()
        (workspace / "tree" / "leaf").write_text("leaf\n")
        yield workspace
    finally:
        unmount(workspace, MNT_DETACH)


def test_a_session_starts_on_the_mount_and_changes_only_its_own_copy(
    session: Session, workspace: Path
) -> None:
    before = _listing(workspace)
    assert session.exec("pwd; cat kept tree/leaf").output == f"{workspace}\nreal\nleaf\n"
    session.exec("echo mine >>kept; rm doomed; mv tree wood; mkdir new; echo n >new/file")
    assert (
        session.exec("cat kept; find . -type f | sort").output
        == "real\nmine\n./kept\n./new/file\n./wood/leaf\n"
    )
    assert _listing(workspace) == before


def test_changes_of_the_workspace_are_part_of_checkpoints_and_forks(
    session: Session, workspace: Path
) -> None:
    before = _listing(workspace)
    session.exec("echo saved >>kept; rm doomed; mv tree wood; exec 8>>open; echo one >&8")
    for branch in return_after(session, "rm -rf ./*; exec 8>&-"):
        branch.exec(f"echo {branch.name} >&8; echo {branch.name} >>kept")
        assert branch.exec("cat kept open; ls -1").output == (
            f"real\nsaved\n{branch.name}\none\n{branch.name}\nkept\nopen\nwood\n"
        )
        at = branch.directory / os.fspath(workspace).lstrip("/")
        assert (at / "kept").read_text() == f"real\nsaved\n{branch.name}\n"
    assert _listing(workspace) == before


@pytest.mark.parametrize(
    "workload", ["directory_of_the_base", "file_of_the_base", "directory_of_the_base_renamed"]
)
def test_a_process_still_watches_on_the_mount(session: Session, workspace: Path, workload: str) -> None:
    (workspace / BASE_FILE).parent.mkdir()
    (workspace / BASE_FILE).touch()
    assert_workload_survives(session, "watches", workload)


def test_a_fork_of_a_fork_carries_the_changes_of_both(session: Session, workspace: Path) -> None:
    session.exec("echo 0 >depth")
    branch = session.main
    for depth in range(1, 4):
        (branch,) = session.fork(branch)
        branch.exec(f"echo {depth} >>depth")
    assert branch.exec("cat depth").output == "0\n1\n2\n3\n"
    assert session.exec("cat depth").output == "0\n"
    assert not (workspace / "depth").exists()


def test_a_directory_outside_the_mount_is_still_part_of_the_session(session: Session) -> None:
    session.exec("echo outside >/var/tmp/outside; mv kept /var/tmp/moved-out")
    for branch in return_after(session, "rm /var/tmp/outside /var/tmp/moved-out"):
        assert (
            branch.exec("cat /var/tmp/outside /var/tmp/moved-out; ls -1").output
            == "outside\nreal\ndoomed\ntree\n"
        )
    assert not os.path.exists("/var/tmp/outside")


def test_without_the_mount_a_restore_fails_and_says_which_to_mount(session: Session, workspace: Path) -> None:
    session.exec("echo saved >>kept")
    session.snapshot("all")
    session.snapshot("files", files_only=True)
    with _unmounted(workspace):
        for checkpoint in ("all", "files"):
            with pytest.raises(
                BaseMountGone, match=f"{workspace}: .* when session {session.id} began"
            ) as gone:
                session.restore(checkpoint)
            assert "mount it again" in gone.value.hint
        with pytest.raises(BaseMountGone, match=os.fspath(workspace)):
            session.fork("all")
        assert session.exec("cat kept").output == "real\nsaved\n"  # the running branch still has it
    for checkpoint in ("all", "files"):
        session.restore(checkpoint)
        assert session.exec("cat kept").output == "real\nsaved\n"


@contextmanager
def _unmounted(mount_point: Path) -> Iterator[None]:
    """Unmount the file system at ``mount_point`` while the block runs."""
    with (
        closing(os.open(mount_point, os.O_PATH | os.O_CLOEXEC)) as mounted,
        closing(clone_mount(mounted)) as copy,
    ):
        unmount(mount_point, MNT_DETACH)
        try:
            yield
        finally:
            with closing(os.open(mount_point, os.O_PATH | os.O_CLOEXEC)) as target:
                move_mount(copy, target)


def _listing(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        os.fspath(path): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (directory, *directory.rglob("*"))
    }


def test_a_state_directory_on_such_a_mount_is_hidden_too(state_dir: Path) -> None:
    mount_point = Path(f"/var/tmp/waypoint-place-{secrets.token_hex(4)}")
    mount_point.mkdir()
    mount("tmpfs", mount_point, "tmpfs", 0, "size=1g,mode=755")
    own = mount_point / "deep/state"
    try:
        own.mkdir(parents=True)
        (mount_point / "work").mkdir()
        Layout(own).criu_prefix.symlink_to(Layout(state_dir).criu_prefix.resolve())
        prepare_host(own, pool_size_bytes=400 << 20, proxies={}, progress=lambda _: None)
        with Waypoint(own) as waypoint:
            session = waypoint.create(mount_point / "work")
            assert session.exec(f"ls -A {own} | wc -l; ls -1 {mount_point}").output == "0\ndeep\nwork\n"
            session.cleanup()
    finally:
        sweep(own)
        detach_all(mount_point)
        mount_point.rmdir()


# --- a directory above it is renamed and replaced by a link ----------------------------------------------------


@pytest.fixture
def moved(waypoint: Waypoint, leaves_nothing_behind: None) -> Iterator["Moved"]:
    """A session whose workspace was moved from ``p/ws`` to ``q/ws``; ``p`` is now a link to the host's ``outside``."""
    with new_workspace() as top:
        for name in ("p/ws", "outside/ws"):
            (top / name).mkdir(parents=True)
        mount("tmpfs", top / "p/ws", "tmpfs", 0, "size=64m")
        try:
            (top / "p/ws/kept").write_text("real\n")
            session = waypoint.create(top / "p/ws")
            session.exec(f"cd {top}; mv p q; ln -s $PWD/outside p; echo saved >>q/ws/kept")
            yield Moved(session, top)
            session.cleanup(force=True)
        finally:
            for mount_point in ("p/ws", "outside/ws"):
                detach_all(top / mount_point)


@dataclass(frozen=True)
class Moved:
    session: Session
    top: Path

    def assert_apart(self, branch: Branch) -> None:
        """Check that the branch has its own copy in its new directory, and that the host's files are as before."""
        branch.exec(f"cd {self.top}; echo {branch.name} >>q/ws/kept; echo {branch.name} >p/ws/planted")
        assert branch.exec("cat q/ws/kept; ls -A p/ws").output == f"real\nsaved\n{branch.name}\nplanted\n"
        inside = branch.directory / os.fspath(self.top).lstrip("/")
        assert (inside / "q/ws/kept").read_text() == f"real\nsaved\n{branch.name}\n"
        assert not os.path.ismount(self.top / "outside/ws")
        assert os.listdir(self.top / "outside/ws") == []
        assert os.listdir(self.top / "p/ws") == ["kept"]


@pytest.mark.parametrize("files_only", [True, False], ids=["files", "full"])
def test_a_link_above_the_mount_redirects_no_restore_and_no_fork(moved: Moved, files_only: bool) -> None:
    session = moved.session
    saved = session.snapshot(files_only=files_only)
    (fork,) = session.fork(saved)
    moved.assert_apart(fork)
    session.restore(saved)
    moved.assert_apart(session.main)
    assert fork.exec("cat q/ws/kept").output == f"real\nsaved\n{fork.name}\n"  # each branch has its own copy
    (again,) = session.fork(session.snapshot(files_only=files_only))
    assert again.exec(f"cat {moved.top}/q/ws/kept").output == "real\nsaved\nmain\n"


@pytest.mark.parametrize("files_only", [True, False], ids=["files", "full"])
def test_a_mount_point_behind_a_link_is_refused_by_name(moved: Moved, files_only: bool) -> None:
    session = moved.session
    saved = session.snapshot(files_only=files_only)
    session.context.layout.checkpoint_mounts(saved.id).unlink()  # as if it had not been moved
    for attempt in (lambda: session.restore(saved), lambda: session.fork(saved)):
        with pytest.raises(EngineError, match=f"belongs at {moved.top}/p/ws, and a link is on the way"):
            attempt()
        assert not os.path.ismount(moved.top / "outside/ws")
    moved.assert_apart(session.main)


def test_any_directory_name_above_the_mount_works_if_criu_accepts_it(moved: Moved) -> None:
    session, top = moved.session, moved.top
    session.exec(f"cd {top}; mv q $'r\\xff]'")
    for branch in return_after(session, "rm p; mv r* p"):
        branch.exec(f"cd {top}; mv r* q")
        moved.assert_apart(branch)
    session.exec(f"cd {top}; mv q r]:x")
    with pytest.raises(EngineError, match="name cannot be passed to CRIU"):
        session.snapshot()
    (fork,) = session.fork(session.snapshot(files_only=True))
    assert fork.exec(f"cat {top}/r*/ws/kept").output == "real\nsaved\nmain\n"


def test_a_mount_that_moved_during_the_snapshot_is_refused(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU gets the mount points before the branch is stopped; a second look shows whether they are still the same."""
    session = moved.session
    looks = iter([{"m0": f"{moved.top}/p/ws"}])
    monkeypatch.setattr(
        checkpoint, "find_mount_points", lambda *of: next(looks, None) or find_mount_points(*of)
    )
    with pytest.raises(EngineError, match="moved while the branch was being saved"):
        session.snapshot()
    (fork,) = session.fork(session.snapshot())
    moved.assert_apart(fork)
