"""A directory or file of the host in a session: seen by every branch, in no checkpoint, inside the same walls."""

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.crash import fail_at, killed_at
from support.leaks import look_at_host
from support.returning import return_after
from waypoint import Branch, Session, Waypoint
from waypoint.errors import (
    CopyFailed,
    DumpFailed,
    EngineError,
    NotFound,
    RestoreFailed,
    ShareUnavailable,
    UsageError,
)
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.model import Secret, Volume
from waypoint.session.status import files_bytes

MakeSession = Callable[..., Session]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of the host to share, with a file in it."""
    path = Path(f"/var/tmp/waypoint-shared-{secrets.token_hex(4)}")
    path.mkdir()
    (path / "file").write_text("host\n")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[MakeSession]:
    """A function that makes sessions with volumes, which are removed after the test."""
    made: list[Session] = []

    def make_session(*volumes: Volume, **options: list[Secret]) -> Session:
        made.append(waypoint.create(workspace, volumes=volumes, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_session
    for session in made:
        session.cleanup(force=True)


def attributes(branch: Branch | Session, *paths: str) -> list[str]:
    """How each of the paths is mounted in a branch."""
    return branch.exec(
        f"for p in {' '.join(paths)}; do findmnt -no VFS-OPTIONS,PROPAGATION $p; done"
    ).output.splitlines()


@pytest.mark.quick
def test_every_branch_reads_and_writes_the_same_volume(make: MakeSession, shared: Path) -> None:
    session = make(Volume(source=str(shared), path="/srv/deep/data"))
    assert session.exec("cat /srv/deep/data/file; echo main >/srv/deep/data/main").output == "host\n"
    branches = return_after(session, "echo later >/srv/deep/data/later")
    for branch in branches:
        branch.exec(f"echo {branch.name} >>/srv/deep/data/file")
        assert branch.exec("ls /srv/deep/data").output.split() == ["file", "later", "main"]
    names = "".join(f"{branch.name}\n" for branch in branches)
    assert (shared / "file").read_text() == f"host\n{names}"
    assert (shared / "later").read_text() == "later\n"  # a restore does not undo it
    for branch in branches:
        assert os.listdir(branch.directory / "srv/deep/data") == []  # the host does not see the volume there


def test_the_mount_options_of_a_volume_hold_in_every_branch_and_descendant(
    make: MakeSession, shared: Path
) -> None:
    (shared / "tool").write_text("#!/bin/sh\nid -u\n")
    (shared / "tool").chmod(0o4755)
    session = make(
        Volume(source=str(shared), path="/data"), Volume(source=str(shared), path="/data-ro", read_only=True)
    )
    first = attributes(session, "/data", "/data-ro")
    assert [line.split()[0].split(",")[:3] for line in first] == [
        ["rw", "nosuid", "nodev"],
        ["ro", "nosuid", "nodev"],
    ]
    assert all(line.endswith("private") for line in first)
    (child,) = session.fork("main")
    (grandchild,) = session.fork(child)
    for branch in (*return_after(session, "true"), child, grandchild):
        assert attributes(branch, "/data", "/data-ro") == first
        for attempt in (
            "echo x >>/data-ro/file",
            "touch /data-ro/new",
            "mount -o remount,rw /data-ro",
            "mount -o remount,bind,rw /data-ro",
            "umount /data-ro",
            "umount /data",
        ):
            assert branch.exec(f"{attempt} 2>/dev/null").exit_code != 0, attempt
        assert branch.exec("/data/tool").output == "0\n"  # programs on it may run
    assert (shared / "file").read_text() == "host\n"


def test_a_file_can_be_a_volume(make: MakeSession, shared: Path) -> None:
    file = shared / "file"
    session = make(
        Volume(source=str(file), path="/srv/conf/app.conf"),
        Volume(source=str(file), path="/etc/motd", read_only=True),
    )
    for branch in [session.main, *return_after(session, "true")]:
        branch.exec(f"echo {branch.name} >>/srv/conf/app.conf")
        assert branch.exec("echo x >>/etc/motd").exit_code != 0
        assert branch.exec("cmp /etc/motd /srv/conf/app.conf").exit_code == 0
    assert file.read_text().count("\n") == 4


def test_volumes_may_be_inside_each_other(make: MakeSession, shared: Path) -> None:
    (shared / "outer" / "inner").mkdir(parents=True)
    (shared / "other").mkdir()
    (shared / "other" / "mark").write_text("other\n")
    session = make(
        Volume(source=f"{shared}/other", path="/data/inner"), Volume(source=f"{shared}/outer", path="/data")
    )
    for branch in [session.main, *return_after(session, "true")]:
        assert branch.exec("ls /data; cat /data/inner/mark").output == "inner\nother\n"
    with pytest.raises(ShareUnavailable, match="'missing' does not exist on the volume"):
        make(
            Volume(source=f"{shared}/outer", path="/data"),
            Volume(source=f"{shared}/other", path="/data/missing/deep"),
        )
    assert sorted(os.listdir(shared / "outer")) == ["inner"]  # nothing is made on the host


def test_links_in_the_base_never_redirect_a_volume_to_the_host(
    make: MakeSession, shared: Path, workspace: Path
) -> None:
    outside = shared / "outside"
    outside.mkdir()
    (workspace / "absolute").symlink_to(outside)
    (workspace / "up").symlink_to(f"{'../' * 20}{os.fspath(outside).lstrip('/')}")
    (workspace / "dangling").symlink_to("/nowhere/at/all")
    (workspace / "own").symlink_to("/.waypoint")
    (workspace / "root").symlink_to("/")
    source = shared / "source"
    source.mkdir()
    session = make(
        Volume(source=str(source), path=f"{workspace}/absolute/one"),
        Volume(source=str(source), path=f"{workspace}/up/two"),
    )
    for branch in [session.main, *return_after(session, "true")]:
        branch.exec(f"touch {outside}/one/{branch.name} {outside}/two/{branch.name}")
    assert len(os.listdir(source)) == 2
    assert os.listdir(outside) == []
    for path, message in (
        ("dangling", "leads nowhere"),
        ("dangling/x", "leads nowhere"),
        ("own/x", r"leads to /\.waypoint/x"),
        ("root", "leads to /,"),
        ("root/proc/fs", "leads to /proc/fs"),
    ):
        with pytest.raises(ShareUnavailable, match=message):
            make(Volume(source=str(source), path=f"{workspace}/{path}"))
    outer = (os.fspath(shared), os.fspath(workspace))
    assert not [entry.path for entry in read_mounts() if entry.path.startswith(outer)]
    assert os.listdir(outside) == []


def test_renaming_a_directory_above_a_volume_keeps_the_volume(make: MakeSession, shared: Path) -> None:
    """A mount moves with a directory above it, and a link in its place is not followed."""
    outside = shared / "outside"
    outside.mkdir()
    session = make(
        Volume(source=str(shared), path="/srv/a/data"), secrets=[Secret(name="s", source=f"{shared}/file")]
    )
    session.exec(
        f"mv /srv/a /srv/b; mkdir /srv/c; ln -s {outside} /srv/a; mv /run /ran; ln -s {outside} /run"
    )
    for branch in return_after(session, "rm /srv/a; mv /srv/b /srv/a"):
        assert branch.exec("cat /srv/b/data/file /ran/secrets/s; ls -A /srv/a/").output == "host\nhost\n"
    for branch in return_after(session, "true"):  # a second time
        assert branch.exec("cat /srv/b/data/file").output == "host\n"
    assert os.listdir(outside) == []


def test_open_files_continue_with_the_current_content_of_the_volume(make: MakeSession, shared: Path) -> None:
    session = make(Volume(source=str(shared), path="/data"))
    session.exec(
        "cd /data; exec 5<>file; read -u 5 line; exec 6>>log; echo one >&6; exec 7>other; echo two >&7"
    )
    saved = session.snapshot()
    (shared / "file").write_text("host\nand more\n")
    (shared / "other").write_text("much longer than it was\n")
    session.exec("echo later >&6")
    session.restore(saved)
    (fork,) = session.fork(saved)
    for branch in (session.main, fork):
        assert branch.exec('pwd; read -u 5 next; echo "$line $next"').output == "/data\nhost and more\n"
        branch.exec(f"echo {branch.name} >&6")
    assert (shared / "log").read_text() == f"one\nlater\nmain\n{fork.name}\n"


def test_a_missing_open_file_of_a_volume_is_reported_and_the_branch_keeps_running(
    make: MakeSession, shared: Path
) -> None:
    session = make(Volume(source=str(shared), path="/data"))
    session.exec("exec 5</data/file")
    saved = session.snapshot()
    session.exec("x=later")
    (shared / "file").unlink()
    for attempt in (lambda: session.restore(saved), lambda: session.fork(saved)):
        with pytest.raises(RestoreFailed, match="data/file") as failure:
            attempt()
        assert f"/data is the volume {shared}" in failure.value.hint
    assert session.exec("echo $x").output == "later\n"
    (shared / "file").write_text("back\n")
    session.restore(saved)
    assert session.exec("cat <&5").output == "back\n"


def test_a_restore_with_a_changed_mapped_file_is_refused(make: MakeSession, shared: Path) -> None:
    session = make(Volume(source=str(shared), path="/data"))
    session.exec(
        'python3 -c \'import mmap, time; f = open("/data/file", "r+b"); m = mmap.mmap(f.fileno(), 0);'
        ' open("/tmp/mapped", "w"); time.sleep(1000)\' & until [ -e /tmp/mapped ]; do sleep 0.02; done'
    )
    saved = session.snapshot()
    (shared / "file").write_text("host, and more than was mapped\n")
    with pytest.raises(RestoreFailed, match="bad size") as failure:
        session.restore(saved)
    assert f"/data is the volume {shared}" in failure.value.hint
    (shared / "file").write_text("host\n")
    session.restore(saved)


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_lock_on_a_volume_is_never_held_twice_and_never_waited_for(
    make: MakeSession, shared: Path, kind: str
) -> None:
    session = make(Volume(source=str(shared), path="/data"))
    session.exec(
        f'python3 -c \'import fcntl, time; f = open("/data/file", "r+b"); fcntl.{kind}(f, fcntl.LOCK_EX);'
        ' open("/tmp/locked", "w"); time.sleep(1000)\' & until [ -e /tmp/locked ]; do sleep 0.02; done'
    )
    saved = session.snapshot()
    with pytest.raises(RestoreFailed, match="lock") as failure:
        session.fork(saved)
    assert "volume" in failure.value.hint
    session.exec("kill %1; wait")
    (fork,) = session.fork(saved)
    taken = (
        f'python3 -c \'import fcntl; fcntl.{kind}(open("/data/file", "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)\''
    )
    assert session.exec(f"{taken} 2>&1").exit_code != 0
    fork.destroy()
    assert session.exec(taken).exit_code == 0


def test_a_missing_volume_is_reported_and_the_branch_keeps_running(make: MakeSession, shared: Path) -> None:
    (shared / "part").mkdir()
    session = make(Volume(source=f"{shared}/part", path="/data"))
    saved = session.snapshot()
    session.exec("x=later")
    (shared / "part").rename(shared / "away")
    for attempt in (lambda: session.restore(saved), lambda: session.fork(saved)):
        with pytest.raises(ShareUnavailable, match=f"{shared}/part:/data: No such file") as failure:
            attempt()
        assert failure.value.hint
    assert session.exec("echo $x; ls -A /data | wc -l").output == "later\n0\n"
    again = session.snapshot()  # the running branch still has the old directory
    (shared / "away").rename(shared / "part")
    (fork,) = session.fork(again)
    assert fork.exec("echo $x; touch /data/there").output == "later\n"
    assert os.listdir(shared / "part") == ["there"]


def test_a_link_that_replaced_a_volume_is_not_followed(make: MakeSession, shared: Path) -> None:
    (shared / "part").mkdir()
    (shared / "link").symlink_to("part")
    (shared / "other").mkdir()
    session = make(Volume(source=f"{shared}/link", path="/data"))
    assert session.record.settings.volumes[0].source == f"{shared}/part"
    saved = session.snapshot()
    (shared / "part").rename(shared / "away")
    (shared / "part").symlink_to("other")
    with pytest.raises(ShareUnavailable, match="symbolic links"):
        session.restore(saved)


def test_copies_reach_a_volume_but_nothing_else_on_the_host(
    make: MakeSession, shared: Path, tmp_path: Path
) -> None:
    session = make(
        Volume(source=str(shared), path="/data"),
        Volume(source=str(shared), path="/data-ro", read_only=True),
        Volume(source=f"{shared}/file", path="/srv/file"),
    )
    (shared / "out").symlink_to(tmp_path)
    session.write_file("/data/new", "copied\n")
    assert (shared / "new").read_text() == "copied\n"
    assert session.read_file("/data-ro/new") == b"copied\n"
    session.write_file("/data/out/escaped", "x")  # the target of the link in the branch
    assert os.listdir(tmp_path) == []  # not the one on the host
    with pytest.raises(CopyFailed, match="Read-only"):
        session.write_file("/data-ro/new", "x")
    (tmp_path / "tree" / "file").mkdir(parents=True)
    for attempt in (
        lambda: session.write_file("/srv/file", "x"),
        lambda: session.upload(tmp_path / "tree", "/srv"),
        lambda: session.upload("/etc/hostname", "/srv/file"),
    ):
        with pytest.raises(CopyFailed, match="a volume is there"):
            attempt()
    assert session.exec("cat /srv/file").output == "host\n"
    assert (shared / "file").read_text() == "host\n"
    (shared / "out").unlink()
    session.download("/data", tmp_path / "copy")
    assert sorted(os.listdir(tmp_path / "copy")) == ["file", "new"]


def test_a_volume_takes_no_space_in_checkpoints(make: MakeSession, shared: Path) -> None:
    session = make(Volume(source=str(shared), path="/data"))
    session.exec("head -c 20M /dev/urandom >/data/big")
    saved = session.snapshot()
    assert files_bytes(session.context, saved.id) < 1 << 20


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("data", "absolute"),
        ("/data/../etc", "absolute"),
        ("/", "cannot be at /"),
        ("//", "cannot be at /"),
        ("/proc/x", "cannot be at /proc/x"),
        ("/sys", "cannot be at /sys"),
        ("/dev/shm", "cannot be at /dev/shm"),
        ("/.waypoint/x", "cannot be at /.waypoint/x"),
        ("/run/secrets/x", "secrets are mounted there"),
        ("/data\0", "absolute"),
        ("/\udcff", "absolute"),
    ],
)
def test_invalid_mount_points_for_a_volume_are_refused(
    waypoint: Waypoint, workspace: Path, shared: Path, path: str, message: str
) -> None:
    secret = Secret(name="s", source=f"{shared}/file")
    with pytest.raises(UsageError, match=message):
        waypoint.create(workspace, volumes=[Volume(source=str(shared), path=path)], secrets=[secret])


def test_invalid_sources_of_a_volume_are_refused(
    waypoint: Waypoint, workspace: Path, shared: Path, state_dir: Path, leaves_nothing_behind: None
) -> None:
    os.mkfifo(shared / "fifo")
    os.mknod(shared / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (shared / "link").symlink_to(state_dir)
    for source in ("relative", "/proc", "/sys/fs", "/dev/null", f"{shared}/fifo", f"{shared}/null"):
        with pytest.raises(UsageError):
            waypoint.create(workspace, volumes=[Volume(source=source, path="/data")])
    for source in ("/", os.fspath(state_dir.parent), f"{state_dir}/locks", f"{shared}/link"):
        with pytest.raises(UsageError, match="state directory"):
            waypoint.create(workspace, volumes=[Volume(source=source, path="/data")])
    with pytest.raises(NotFound, match="/no/such"):
        waypoint.create(workspace, volumes=[Volume(source="/no/such", path="/data")])
    with pytest.raises(UsageError, match="two volumes at /data"):
        waypoint.create(
            workspace, volumes=[Volume(source=str(shared), path=p) for p in ("/data", "/data/./")]
        )
    with pytest.raises(ShareUnavailable, match="it is a directory in the base") as refused:
        waypoint.create(workspace, volumes=[Volume(source=f"{shared}/file", path="/etc")])
    assert "another path" in refused.value.hint
    with pytest.raises(ShareUnavailable, match="it is a file in the base"):
        waypoint.create(workspace, volumes=[Volume(source=str(shared), path="/etc/passwd")])


def test_a_failure_or_kill_at_any_step_leaves_no_mount(
    make: MakeSession, shared: Path, waypoint: Waypoint, state_dir: Path, workspace: Path
) -> None:
    session = make(
        Volume(source=str(shared), path="/data"), secrets=[Secret(name="s", source=f"{shared}/file")]
    )
    session.snapshot("point")
    session.exec("x=later")
    before = look_at_host(state_dir)
    for number in range(8):
        with fail_at(number) as failure, pytest.raises(EngineError):
            session.fork("point", ids=["side"])
        if failure.reached == "fork/publish":
            break
        assert look_at_host(state_dir) == before, failure.reached
    assert failure.reached == "fork/publish"
    shares = ("--volume", f"{shared}:/data", "--secret", f"s={shared}/file")
    killed = 0
    for number in range(2, 8):  # before that, no mount exists
        words = (
            ("init", str(workspace), "--name", "cut", *shares)
            if number % 2
            else ("fork", session.id, "point")
        )
        if killed_at(state_dir, number, *words):
            killed += 1
            with Waypoint(state_dir):
                assert look_at_host(state_dir) == before
    assert killed >= 4
    assert session.exec("echo $x; cat /data/file").output == "later\nhost\n"
    assert (shared / "file").read_text() == "host\n"
    for other in waypoint.sessions():
        if other.record.name == "cut":
            other.cleanup(force=True)


def test_a_volume_that_is_not_recorded_makes_a_snapshot_fail(make: MakeSession, shared: Path) -> None:
    session = make(Volume(source=str(shared), path="/data"))
    note = session.context.layout.shared(session.main.record.incarnation) / "mounts.json"
    noted = note.read_text()
    note.write_text("{}")
    with pytest.raises(DumpFailed):
        session.snapshot()
    note.write_text(noted)
    session.snapshot()
