"""Whatever the programs of a branch do before or during a copy, it stays inside and never waits for them."""

import io
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until
from waypoint import Session
from waypoint.errors import CopyFailed, NotFound
from waypoint.kernel.copy.confined import process_root


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of the host that a branch over the host's root also sees; the branch must change only its own copy."""
    path = Path(f"/var/tmp/waypoint-outside-{secrets.token_hex(4)}")
    path.mkdir()
    (path / "secret").write_text("the host's")
    yield path
    assert sorted(os.listdir(path)) == ["secret"]
    assert (path / "secret").read_text() == "the host's"
    shutil.rmtree(path)


def test_a_link_at_the_destination_is_replaced(session: Session, outside: Path, tmp_path: Path) -> None:
    session.exec(f"ln -s {outside}/secret /srv/link; ln -s {outside} /srv/dir; ln -s /nowhere /srv/dangling")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "in").write_text("in")
    session.write_file("/srv/link", "mine")
    session.upload(tmp_path / "tree" / "in", "/srv/dangling")
    session.upload(tmp_path / "tree", "/srv/dir")
    assert session.exec(f"cat /srv/link /srv/dangling /srv/dir/in {outside}/secret; ls {outside}").output == (
        "mineininthe host'ssecret\n"
    )


def test_a_link_in_the_path_is_followed_only_inside(session: Session, outside: Path, state_dir: Path) -> None:
    session.exec(
        f"ln -s {outside} /srv/absolute; ln -s ../../../../../../..{outside} /srv/up; echo branch >{outside}/secret;"
        f"ln -s {state_dir} /srv/state; ln -s /nowhere /srv/dangling"
    )
    for path in ("/srv/absolute/secret", "/srv/up/secret", f"/../../..{outside}/secret"):
        assert session.read_file(path) == b"branch\n"
    session.write_file("/srv/up/made", "x")
    session.write_file("/srv/absolute/deep/made", "x")
    assert session.exec(f"cd {outside}; find . -type f | sort").output == "./deep/made\n./made\n./secret\n"
    with pytest.raises(NotFound):
        session.read_file("/srv/state/catalogue.db")  # only the host has it
    with pytest.raises(CopyFailed, match="No such file"):
        session.write_file("/srv/dangling/file", "x")
    with pytest.raises(CopyFailed, match="No such file"):
        session.write_file("/srv/missing/../file", "x")


@pytest.mark.parametrize("via", ["root", "cwd", "fd/0", "exe"])
def test_a_link_in_proc_is_not_followed(session: Session, outside: Path, via: str) -> None:
    session.exec(f"ln -s /proc/1/{via} /srv/link")
    for path in (f"/proc/1/{via}", f"/proc/1/{via}/etc/hostname", "/srv/link", "/srv/link/etc/hostname"):
        with pytest.raises((CopyFailed, NotFound)):
            session.read_file(path)
    with pytest.raises(CopyFailed):
        session.write_file(f"/proc/1/{via}{outside}/secret", "x")
    with pytest.raises(CopyFailed):
        session.write_file(f"/srv/link{outside}/secret", "x")


SWAPPING = """
import ctypes
libc = ctypes.CDLL(None)
open("/tmp/swapping", "w").close()
while libc.renameat2(-100, b"/srv/dir", -100, b"/srv/link", 2) == 0:
    pass
"""


def test_a_directory_repeatedly_swapped_for_a_link_never_redirects_a_copy(
    session: Session, outside: Path, tmp_path: Path
) -> None:
    session.exec(f"mkdir /srv/dir; echo right >/srv/dir/secret; ln -s {outside} /srv/link")
    session.exec(f"echo wrong >{outside}/secret")
    session.write_file("/tmp/swap.py", SWAPPING)
    session.exec("python3 /tmp/swap.py &")
    wait_until(session, "[ -e /tmp/swapping ]")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("x")
    outcomes = set()
    for number in range(800):
        try:
            if number % 4 == 0:
                outcomes.add(session.read_file("/srv/dir/secret").decode())
            elif number % 4 == 1:
                session.write_file("/srv/dir/made", "x")
                outcomes.add("written")
            elif number % 4 == 2:
                assert session.upload(tmp_path / "tree", "/srv/dir/tree").files == 1
                outcomes.add("uploaded")
            else:
                session.download("/srv/dir", tmp_path / "out")
                outcomes.add("downloaded")
        except (CopyFailed, NotFound):
            continue
    assert outcomes == {"right\n", "wrong\n", "written", "uploaded", "downloaded"}
    secret = tmp_path / "out" / "secret"  # that of the branch, from either of its two directories
    assert secret.read_text() in ("right\n", "wrong\n")
    assert session.exec("kill %1").exit_code == 0


def test_fifos_sockets_and_devices_are_refused_at_once(session: Session, tmp_path: Path) -> None:
    session.exec(
        "mkfifo /srv/fifo; mkdir /srv/tree; mkfifo /srv/tree/fifo; cd /srv; "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/srv/socket\")'"
    )
    for path, kind in (
        ("/srv/fifo", "a FIFO"),
        ("/srv/socket", "a socket"),
        ("/dev/null", "a device"),
        ("/dev/zero", "a device"),
        ("/dev/tty", "a device"),
    ):
        with pytest.raises(CopyFailed, match=f"'main:{path}': it is {kind}"):
            session.read_file(path)
        with pytest.raises(CopyFailed, match=f"'main:{path}': it is {kind}"):
            session.download(path, tmp_path / "out")
        with pytest.raises(CopyFailed, match=f"'main:{path}': it is {kind}"):
            session.download_tar(path, io.BytesIO())
    for path, named in (("/srv/tree", "/srv/tree/fifo"), ("/dev", "/dev/fd")):
        stream = io.BytesIO()
        with pytest.raises(CopyFailed, match=f"'main:{named}': it is a"):
            session.download(path, tmp_path / "out")
        with pytest.raises(CopyFailed, match=f"'main:{named}': it is a"):
            session.download_tar(path, stream)
        assert stream.getvalue() == b""
    assert os.listdir(tmp_path) == []


def test_such_sources_on_the_host_are_refused_too(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    os.mkfifo(root / "fifo")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "link-to-directory").symlink_to("/etc")
    for source in ("tree", "tree/fifo", "socket", "link", "link-to-directory", "/dev/null", "/dev/zero"):
        with pytest.raises(CopyFailed, match="it is a "):
            session.upload(source, "/srv/made-for/it")
    assert "made-for" not in os.listdir(session.directory / "srv")


def test_devices_and_files_of_the_kernel_are_not_replaced(session: Session, tmp_path: Path) -> None:
    (tmp_path / "null").write_text("x")
    for path in (
        "/dev/null",
        "/dev/",
        "/dev/stdout",
        "/proc/sys/kernel/hostname",
        "/proc/new",
        "/sys/new",
        "/dev/pts/9",
    ):
        with pytest.raises(CopyFailed):
            session.upload(tmp_path / "null", path)
    assert session.exec("stat -c %F /dev/null; readlink /dev/stdout").output == (
        "character special file\n/proc/self/fd/1\n"
    )
    for target in ("/dev/null", "/dev/stdout"):
        with pytest.raises(CopyFailed, match="a device is there"):
            session.download("/etc/hostname", target)


def test_reading_an_endless_file_is_given_up(session: Session, tmp_path: Path) -> None:
    with pytest.raises(CopyFailed, match="kmsg"):
        session.read_file("/proc/kmsg")  # a read would wait for the next message of the kernel
    for tree in ("/proc", "/sys", "/proc/1"):
        with pytest.raises(CopyFailed, match="copied"):
            session.download(tree, tmp_path / "out", links=True)
    assert os.listdir(tmp_path) == []
    session.exec("while :; do echo more; done >>/srv/growing &")
    wait_until(session, "[ -s /srv/growing ]")
    session.download("/srv/growing", tmp_path / "growing")
    assert (tmp_path / "growing").stat().st_size > 0
    session.download_tar("/srv/growing", io.BytesIO())
    session.exec("kill %1")


def test_a_tree_too_deep_is_refused_before_anything_is_made(session: Session, tmp_path: Path) -> None:
    session.exec(
        'python3 -c \'import os; os.chdir("/srv"); [(os.mkdir("d"), os.chdir("d")) for _ in range(600)]\''
    )
    with pytest.raises(CopyFailed, match="directories deep"):
        session.download("/srv/d", tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_the_root_of_another_process_is_not_taken_for_the_branch(session: Session) -> None:
    cgroup = session.context.platform.cgroup(session.main.record.incarnation)
    for pid in (os.getpid(), 1, 2**22 - 1):
        with pytest.raises(ProcessLookupError), process_root(pid, cgroup, "main:"):
            pass
