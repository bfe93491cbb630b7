"""Secrets: in every branch, in no checkpoint, and no longer than the branch."""

import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import look_at_host
from support.returning import return_after
from waypoint import Session, Waypoint
from waypoint.errors import CopyFailed, InvalidName, ShareUnavailable, UsageError
from waypoint.model import Secret

CONTENT = "a-secret-" + secrets.token_hex(16)


@pytest.fixture
def file() -> Iterator[Path]:
    """A file of the host that only root may read."""
    path = Path(f"/var/tmp/waypoint-secret-{secrets.token_hex(4)}")
    path.touch(0o600)
    path.write_text(CONTENT)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def session(
    waypoint: Waypoint, workspace: Path, file: Path, leaves_nothing_behind: None
) -> Iterator[Session]:
    created = waypoint.create(workspace, secrets=[Secret(name="token", source=str(file))])
    yield created
    if any(existing.id == created.id for existing in waypoint.sessions()):
        created.cleanup(force=True)


def holding(directory: Path, needle: bytes) -> list[Path]:
    """The files below ``directory`` that contain ``needle``."""
    found = []
    for path in [directory, *directory.rglob("*")]:
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(needle) >= 0:
                found.append(path)
    return found


def test_every_branch_can_read_a_secret_and_none_can_change_it(session: Session) -> None:
    for branch in [session.main, *return_after(session, "true")]:
        assert branch.exec("cat /run/secrets/token; ls /run/secrets").output == f"{CONTENT}token\n"
        assert branch.exec("setpriv --reuid=1000 --clear-groups cat /run/secrets/token").output == CONTENT
        for attempt in (
            "echo x >/run/secrets/token",
            "rm -f /run/secrets/token",
            "touch /run/secrets/new",
            "chmod 666 /run/secrets/token",
            "mount -o remount,bind,rw /run/secrets",
            "umount /run/secrets",
            "rmdir /run/secrets",
        ):
            assert branch.exec(f"{attempt} 2>/dev/null").exit_code != 0, attempt
        options = branch.exec("findmnt -no VFS-OPTIONS /run/secrets").output.strip().split(",")
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(options)


def test_a_secret_is_nowhere_in_the_state_directory(session: Session, state_dir: Path) -> None:
    assert session.exec("test -s /run/secrets/token").exit_code == 0
    session.snapshot()
    session.fork("main")
    kept = [path for path in state_dir.iterdir() if path.is_dir() and path.name not in ("criu", "mnt")]
    kept += [path for path in state_dir.iterdir() if path.is_file() and path.name != "pool.img"]
    assert {"pool", "shared", "work", "catalogue.db"} <= {path.name for path in kept}
    assert [found for path in kept for found in holding(path, CONTENT.encode())] == []
    session.exec("cp /run/secrets/token /srv/kept")  # copies that a program makes are not protected
    assert [path.name for path in holding(state_dir / "pool", CONTENT.encode())] == ["kept"]


def test_each_incarnation_has_the_secret_as_it_was_at_its_start(session: Session, file: Path) -> None:
    session.exec("exec 5</run/secrets/token")
    saved = session.snapshot()
    file.write_text("rotated, and longer than it was before: " + "x" * 100)
    assert session.exec("cat /run/secrets/token").output == CONTENT
    session.restore(saved)
    (fork,) = session.fork(saved)
    for branch in (session.main, fork):
        assert branch.exec("cat <&5; cmp /dev/fd/5 /run/secrets/token").output == file.read_text()
        assert branch.exec("cat /run/secrets/token").output == file.read_text()


def test_a_missing_secret_file_is_reported_and_the_branch_keeps_running(session: Session, file: Path) -> None:
    saved = session.snapshot()
    session.exec("x=later")
    file.unlink()
    for attempt in (lambda: session.restore(saved), lambda: session.fork(saved)):
        with pytest.raises(ShareUnavailable, match=f"secret token={file}: No such file") as failure:
            attempt()
        assert failure.value.hint
    assert session.exec("echo $x; cat /run/secrets/token").output == f"later\n{CONTENT}"
    file.write_text("back")
    session.restore(saved)
    assert session.exec("cat /run/secrets/token").output == "back"


def test_no_copy_of_a_tree_contains_a_secret(session: Session, tmp_path: Path) -> None:
    for path in ("/run", "/run/secrets"):
        with pytest.raises(CopyFailed, match="secrets are not copied"):
            session.download(path, tmp_path / "copy")
        with (
            (tmp_path / "stream").open("wb") as stream,
            pytest.raises(CopyFailed, match="secrets are not copied"),
        ):
            session.download_tar(path, stream)
    with pytest.raises(CopyFailed, match="Read-only"):
        session.write_file("/run/secrets/token", "x")
    assert holding(tmp_path, CONTENT.encode()) == []
    assert not (session.directory / "run/secrets/token").exists()  # as the host sees the branch


def test_a_secret_is_unmounted_with_its_branch(session: Session, state_dir: Path) -> None:
    (fork,) = session.fork("main")
    fork.destroy()
    assert session.exec("cat /run/secrets/token").output == CONTENT
    session.cleanup()
    assert [mount for mount in look_at_host(state_dir).mounts if "secrets" in mount] == []


def test_an_invalid_secret_is_refused(
    waypoint: Waypoint, workspace: Path, file: Path, tmp_path: Path, leaves_nothing_behind: None
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    for source in (f"{tmp_path}/none", str(tmp_path), f"{tmp_path}/fifo", f"{tmp_path}/large", "relative"):
        with pytest.raises(UsageError, match=Path(source).name):
            waypoint.create(workspace, secrets=[Secret(name="token", source=source)])
    with pytest.raises(InvalidName):
        waypoint.create(workspace, secrets=[Secret(name="../token", source=str(file))])
    with pytest.raises(UsageError, match="two secrets named 'token'"):
        waypoint.create(workspace, secrets=[Secret(name="token", source=str(file))] * 2)


def test_no_environment_variable_of_the_caller_is_inside(
    waypoint: Waypoint, workspace: Path, monkeypatch: pytest.MonkeyPatch, leaves_nothing_behind: None
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CONTENT)
    session = waypoint.create(workspace)
    for branch in [session.main, *return_after(session, "true")]:
        seen = branch.exec("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'").output
        assert CONTENT not in seen
        assert branch.exec_isolated("env").output.find(CONTENT) < 0
    session.cleanup(force=True)
