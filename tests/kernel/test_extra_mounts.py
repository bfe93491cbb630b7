"""A workspace on a file system of its own: below ``/``, but not part of the host's root."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import sweep
from support.returning import return_after
from waypoint import Session, Waypoint
from waypoint.kernel.mounts import detach_all
from waypoint.kernel.syscalls import MNT_DETACH, mount, unmount
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout


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


def test_the_session_starts_there_and_changes_its_own_copy(session: Session, workspace: Path) -> None:
    before = _listing(workspace)
    assert session.exec("pwd; cat kept tree/leaf").output == f"{workspace}\nreal\nleaf\n"
    session.exec("echo mine >>kept; rm doomed; mv tree wood; mkdir new; echo n >new/file")
    assert (
        session.exec("cat kept; find . -type f | sort").output
        == "real\nmine\n./kept\n./new/file\n./wood/leaf\n"
    )
    assert _listing(workspace) == before


def test_its_changes_belong_to_checkpoints_and_forks(session: Session, workspace: Path) -> None:
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


def test_a_fork_of_a_fork_carries_the_changes_of_both(session: Session, workspace: Path) -> None:
    session.exec("echo 0 >depth")
    branch = session.main
    for depth in range(1, 4):
        (branch,) = session.fork(branch)
        branch.exec(f"echo {depth} >>depth")
    assert branch.exec("cat depth").output == "0\n1\n2\n3\n"
    assert session.exec("cat depth").output == "0\n"
    assert not (workspace / "depth").exists()


def test_a_directory_outside_it_is_still_part_of_the_session(session: Session) -> None:
    session.exec("echo outside >/var/tmp/outside; mv kept /var/tmp/moved-out")
    for branch in return_after(session, "rm /var/tmp/outside /var/tmp/moved-out"):
        assert (
            branch.exec("cat /var/tmp/outside /var/tmp/moved-out; ls -1").output
            == "outside\nreal\ndoomed\ntree\n"
        )
    assert not os.path.exists("/var/tmp/outside")


def _listing(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        os.fspath(path): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (directory, *directory.rglob("*"))
    }


def test_the_state_directory_is_hidden_also_when_it_lies_on_such_a_mount(state_dir: Path) -> None:
    place = Path(f"/var/tmp/waypoint-place-{secrets.token_hex(4)}")
    place.mkdir()
    mount("tmpfs", place, "tmpfs", 0, "size=1g,mode=755")
    own = place / "deep/state"
    try:
        own.mkdir(parents=True)
        (place / "work").mkdir()
        Layout(own).criu_prefix.symlink_to(Layout(state_dir).criu_prefix.resolve())
        prepare_host(own, pool_size_bytes=400 << 20, proxies={}, progress=lambda _: None)
        with Waypoint(own) as waypoint:
            session = waypoint.create(place / "work")
            assert session.exec(f"ls -A {own} | wc -l; ls -1 {place}").output == "0\ndeep\nwork\n"
            session.cleanup()
    finally:
        sweep(own)
        detach_all(place)
        place.rmdir()
