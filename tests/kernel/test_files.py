"""Files are copied completely into a branch and out of it, while it runs."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.returning import return_after
from support.waiting import DEADLINE_S, wait_until
from waypoint import CopyResult, Session
from waypoint.errors import Broken, Busy, CopyFailed, NotFound, UsageError
from waypoint.store.lock import locked

NAMES = ["plain", "a b", "new\nline", "-dash", "\udcff\udcfe", "é" * 120, "x" * 255, "\\", "$(x)"]
ODD_MODES = {"public": 0o644, "program": 0o755, "secret": 0o600, "nothing": 0o000, "all": 0o777}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory on the host with everything that a copy keeps."""
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep").chmod(0o711)
    (root / "empty").mkdir(mode=0o700)
    (root / "empty-file").touch()
    for name in NAMES:
        (root / "deep" / name).write_text(name, errors="surrogateescape")
    for name, mode in ODD_MODES.items():
        (root / "deep" / "er" / name).write_text(name)
        (root / "deep" / "er" / name).chmod(mode)
    return root


def look(root: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a directory."""
    return {
        os.fspath(path.relative_to(root)): (
            path.lstat().st_mode,
            os.fsencode(os.readlink(path))
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b"",
        )
        for path in (root, *root.rglob("*"))
    }


def inside(session: Session, path: str) -> Path:
    """The path at which the host sees a file of the branch."""
    return session.directory / path.lstrip("/")


def test_a_file_can_be_written_and_read(session: Session) -> None:
    session.write_file("/srv/new/deep/note", "text é\n", mode=0o640)
    assert session.read_file("/srv/new/deep/note") == "text é\n".encode()
    assert session.exec("stat -c '%a %U %n' /srv/new/deep/note /srv/new").output == (
        "640 root /srv/new/deep/note\n755 root /srv/new\n"
    )
    session.write_file("/srv/new/deep/note", b"\0\xff")
    assert session.read_file("/srv/new/deep/note") == b"\0\xff"
    assert session.exec("stat -c %a /srv/new/deep/note; ls -1A /srv/new/deep").output == "644\nnote\n"


def test_each_branch_has_its_own_files(session: Session) -> None:
    session.write_file("/srv/note", "main")
    (fork,) = session.fork(session.main)
    fork.write_file("/srv/note", "fork")
    assert (session.read_file("/srv/note"), fork.read_file("/srv/note")) == (b"main", b"fork")


def test_a_directory_copied_in_and_out_keeps_names_contents_and_modes(
    session: Session, tree: Path, tmp_path: Path
) -> None:
    copied = session.upload(tree, "/srv/tree")
    files, directories = len(NAMES) + len(ODD_MODES) + 1, 4
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    assert copied == CopyResult(files=files, directories=directories, links=0, size_bytes=size)
    assert look(inside(session, "/srv/tree")) == look(tree)
    assert session.download("/srv/tree", tmp_path / "out" / "missing") == copied
    assert look(tmp_path / "out" / "missing") == look(tree)

    stream = io.BytesIO()
    assert session.download_tar("/srv/tree", stream) == copied
    stream.seek(0)
    session.upload_tar(stream, "/srv/unpacked")
    assert look(inside(session, "/srv/unpacked/tree")) == look(tree)


def test_only_read_write_and_execute_bits_are_kept(session: Session, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o6755)
    session.upload(tmp_path / "file", "/srv/file")
    session.exec("chmod 7711 /srv/file; mkdir -m 3777 /srv/shared")
    session.upload(tmp_path / "file", "/srv/other")
    session.download("/srv/file", tmp_path / "back")
    assert (tmp_path / "back").stat().st_mode & 0o7777 == 0o711
    session.upload(tmp_path, "/srv/shared")
    assert session.exec("stat -c %a /srv/other /srv/shared").output == "755\n3777\n"


def test_a_file_is_put_into_a_directory_and_a_directory_is_merged_into_it(
    session: Session, tree: Path, tmp_path: Path
) -> None:
    session.exec(
        "mkdir /srv/there; echo old >/srv/there/old; mkdir /srv/there/deep; echo old >/srv/there/deep/plain"
    )
    (tmp_path / "file").write_text("file")
    session.upload(tmp_path / "file", "/srv/there")
    session.upload(tmp_path / "file", "/srv/there/")
    session.upload(tmp_path / "file", "/srv/made/")
    session.upload(tree, "/srv/there")
    assert session.read_file("/srv/there/old") == b"old\n"
    assert session.read_file("/srv/there/file") == session.read_file("/srv/made/file") == b"file"
    assert session.read_file("/srv/there/deep/plain") == b"plain"
    assert "tree" not in os.listdir(inside(session, "/srv/there"))
    with pytest.raises(CopyFailed, match=r"'main:/srv/there': a directory is there"):
        session.write_file("/srv/there", "x")
    session.exec("cd /srv/there; rm empty-file deep/plain; mkdir empty-file")
    before = look(inside(session, "/srv/there"))
    with pytest.raises(CopyFailed, match=r"'main:/srv/there/empty-file': a directory is there"):
        session.upload(tree, "/srv/there")
    assert look(inside(session, "/srv/there")) == before


def test_a_merge_continues_into_a_file_system_mounted_below(session: Session, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "mounted" / "sub").mkdir(parents=True)
    (root / "mounted" / "file").write_text("new")
    (root / "mounted" / "sub" / "file").write_text("new")
    (root / "mounted" / "link").symlink_to("file")
    session.exec("mkdir -p /srv/mounted")
    pid = session.main.record.init_pid
    subprocess.run(
        ["nsenter", "-t", str(pid), "-m", "mount", "-t", "tmpfs", "tmpfs", "/srv/mounted"], check=True
    )
    session.write_file("/srv/mounted/file", "old")
    session.upload(root, "/srv", links=True)
    assert session.exec(
        "cat /srv/mounted/file /srv/mounted/sub/file /srv/mounted/link; ls -1A /srv/mounted"
    ).output == ("newnewnewfile\nlink\nsub\n")
    assert os.listdir(inside(session, "/srv/mounted")) == []


def test_links_are_copied_as_links_on_request(session: Session, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "out").symlink_to("/etc/passwd")
    (root / "up").symlink_to("../../..")
    with pytest.raises(CopyFailed, match=rf"'{root}/(out|up)': it is a symbolic link") as refused:
        session.upload(root, "/srv/tree")
    assert "--links" in refused.value.hint
    with pytest.raises(NotFound):
        session.read_file("/srv/tree/out")
    assert session.upload(root, "/srv/tree", links=True).links == 2
    assert session.exec("readlink /srv/tree/out /srv/tree/up").output == "/etc/passwd\n../../..\n"
    session.upload(root / "up", "/srv", links=True)
    session.download("/srv/up", tmp_path / "alone", links=True)
    assert os.readlink(tmp_path / "alone") == "../../.."
    session.download("/srv/tree", tmp_path / "back", links=True)
    assert look(tmp_path / "back") == look(root)


def test_a_large_file_and_a_sparse_one_are_copied(session: Session, tmp_path: Path) -> None:
    large, holes = tmp_path / "large", tmp_path / "holes"
    large.write_bytes(os.urandom(1 << 20) * 40 + b"end")
    with open(holes, "wb") as out:
        out.seek(3 << 30)
        out.write(b"middle")
        out.truncate(5 << 30)
    assert session.upload(large, "/srv/large").size_bytes == large.stat().st_size
    assert session.upload(holes, "/srv/holes").size_bytes < 1 << 20
    session.download("/srv/large", tmp_path / "large-back")
    session.download("/srv/holes", tmp_path / "holes-back")
    assert (tmp_path / "large-back").read_bytes() == large.read_bytes()
    back = (tmp_path / "holes-back").stat()
    assert (back.st_size, back.st_blocks) == (5 << 30, holes.stat().st_blocks)
    assert session.exec(
        "stat -c '%s' /srv/holes; tail -c +$(((3 << 30) + 1)) /srv/holes | head -c 6"
    ).output == (f"{5 << 30}\nmiddle")


def test_files_made_up_by_the_kernel_are_read_to_their_end(session: Session, tmp_path: Path) -> None:
    assert session.read_file("/proc/1/comm") == b"init\n"
    assert b"rootfs" not in session.read_file("/proc/1/mountinfo")
    session.download("/sys/kernel/mm/transparent_hugepage/enabled", tmp_path / "attribute")
    assert (tmp_path / "attribute").read_text() == Path(
        "/sys/kernel/mm/transparent_hugepage/enabled"
    ).read_text()
    stream = io.BytesIO()
    session.download_tar("/proc/1/comm", stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        member = tar.extractfile("comm")
        assert member is not None
        assert member.read() == b"init\n"


def test_copied_files_are_part_of_checkpoints_and_forks(session: Session, tree: Path, tmp_path: Path) -> None:
    session.upload(tree, "/srv/tree")
    for branch in return_after(session, "rm -r /srv/tree"):
        branch.download("/srv/tree", tmp_path / branch.name)
        assert look(tmp_path / branch.name) == look(tree)
        branch.write_file("/srv/tree/mine", branch.name)
        assert branch.exec("cat /srv/tree/mine").output == branch.name


def test_a_copy_can_run_during_a_command(session: Session) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            session.exec,
            "touch /tmp/runs; until [ -e /srv/go ]; do sleep 0.02; done; cat /srv/go",
            timeout_s=DEADLINE_S,
        )
        while not inside(session, "/tmp/runs").exists():
            os.sched_yield()
        session.write_file("/srv/go", "went")
        assert waiting.result().output == "went"


def test_no_checkpoint_contains_a_part_of_a_copy(session: Session, tmp_path: Path) -> None:
    """Two files with the same content are copied together repeatedly while checkpoints are taken."""
    root = tmp_path / "pair"
    root.mkdir()
    done = threading.Event()

    def copy_pairs() -> int:
        number = 0
        while number < 3 or not done.is_set():
            number += 1
            for name in ("a", "b"):
                (root / name).write_text(f"{number}\n" * 10_000)
            session.upload(root, "/srv/pair")
        return number

    with ThreadPoolExecutor() as pool:
        copies = pool.submit(copy_pairs)
        while not inside(session, "/srv/pair/b").exists():
            os.sched_yield()
        checkpoints = [session.snapshot() for _ in range(4)]
        done.set()
        copies.result()
    for checkpoint in checkpoints:
        session.restore(checkpoint)
        assert session.exec("cmp /srv/pair/a /srv/pair/b && wc -l </srv/pair/a; ls -1A /srv/pair").output == (
            "10000\na\nb\n"
        )


READER = """
import os, time
seen = set()
while not os.path.exists("/tmp/enough"):
    with open("/srv/file", "rb") as file:
        content = file.read()
    if len(content) != 3_000_000 or len(set(content)) != 1:
        open("/tmp/torn", "w").close()
    seen.add(content[:1])
    open("/tmp/reads", "w").close()
print(b"".join(sorted(seen)).decode())
"""


def test_a_reader_sees_only_the_old_or_the_new_file(session: Session) -> None:
    session.write_file("/srv/file", "a" * 3_000_000)
    session.write_file("/tmp/reader.py", READER)
    session.exec(
        "python3 /tmp/reader.py >/tmp/seen & until [ -e /tmp/reads ]; do sleep 0.02; done", timeout_s=30
    )
    for letter in "bcdefgh":
        session.write_file("/srv/file", letter * 3_000_000)
        for _ in range(2):  # the first read may have opened the old file before, the second cannot have
            session.exec("rm /tmp/reads; until [ -e /tmp/reads ]; do sleep 0.02; done", timeout_s=30)
    session.write_file("/tmp/enough", "")
    wait_until(session, "[ -s /tmp/seen ]")
    assert session.read_file("/tmp/seen") == b"abcdefgh\n"
    with pytest.raises(NotFound):
        session.read_file("/tmp/torn")


KILL_ITSELF = """
import os, signal, sys
import waypoint

def die(copied):
    if copied.size_bytes > 4_000_000:
        os.kill(os.getpid(), signal.SIGKILL)

state_dir, session, source, target = sys.argv[1:]
with waypoint.open(state_dir) as wp:
    wp.session(session).upload(source, target, on_progress=die)
"""


def test_a_killed_copy_leaves_the_old_file_and_the_next_copy_cleans_up(
    session: Session, state_dir: Path, tmp_path: Path
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a").write_text("new")
    (root / "large").write_bytes(os.urandom(8_000_000))
    session.exec("mkdir /srv/tree; echo old >/srv/tree/a; echo old >/srv/tree/large")
    for source, target in ((root / "large", "/srv/tree/large"), (root, "/srv/tree")):
        command = [sys.executable, "-c", KILL_ITSELF, str(state_dir), session.id, str(source), target]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert (
            session.exec("cat /srv/tree/a /srv/tree/large; ls -A /srv/tree | wc -l").output == "old\nold\n3\n"
        )
    session.write_file("/srv/tree/b", "next")
    assert session.exec("ls -1A /srv/tree").output == "a\nb\nlarge\n"
    session.upload(root, "/srv/tree")
    assert session.read_file("/srv/tree/large") == (root / "large").read_bytes()


def test_a_copy_waits_for_the_branch_or_reports_busy(session: Session, tmp_path: Path) -> None:
    lock = session.context.branch_lock(session.id, "main")
    session.write_file("/srv/file", "x")
    with locked(lock, what="test"):
        with pytest.raises(Busy):
            session.write_file("/srv/file", "y", wait=False)
        with pytest.raises(Busy):
            session.read_file("/srv/file", wait=False)
    with locked(lock, what="test", shared=True):  # as if another command used the branch
        assert session.read_file("/srv/file", wait=False) == b"x"
        with pytest.raises(Busy):
            session.upload_tar(io.BytesIO(), "/srv", wait=False)
    assert session.read_file("/srv/file") == b"x"


def test_missing_files_and_invalid_paths_are_reported(session: Session, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file or directory named 'main:/srv/nosuch'"):
        session.read_file("/srv/nosuch")
    with pytest.raises(NotFound, match=f"no file or directory named '{tmp_path}/nosuch'"):
        session.upload(tmp_path / "nosuch", "/srv/x")
    with pytest.raises(NotFound):
        session.download("/srv/nosuch", tmp_path / "x")
    for path in ("relative", "", "/nu\0ll", "/\ud800"):
        with pytest.raises(UsageError):
            session.read_file(path)
        with pytest.raises(UsageError):
            session.upload(tmp_path, path)
    with pytest.raises(UsageError, match="mode"):
        session.write_file("/srv/x", "", mode=0o4755)
    with pytest.raises(CopyFailed, match="it is a directory"):
        session.read_file("/srv")
    session.write_file("/srv/file", "x")
    with pytest.raises(CopyFailed, match="Not a directory"):
        session.write_file("/srv/file/below", "x")
    with pytest.raises(CopyFailed, match="Not a directory"):
        session.upload(tmp_path, "/srv/file/")
    with pytest.raises(CopyFailed, match="something else is there"):
        session.upload_tar(io.BytesIO(), "/srv/file")
    assert os.listdir(tmp_path) == []
    assert session.read_file("/srv/file") == b"x"


@pytest.mark.parametrize("root", ["/", "//", "/.", "/srv/..", "/srv/../"])
def test_the_root_cannot_be_the_destination(session: Session, tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("x")
    before = sorted(os.listdir(session.directory))
    for source in (tmp_path, tmp_path / "file"):
        with pytest.raises(CopyFailed, match="a root cannot be the destination"):
            session.upload(source, root)
        with pytest.raises(CopyFailed, match="a root cannot be the destination"):
            session.download("/etc/hostname", root)
    with pytest.raises(CopyFailed, match="a root cannot be the destination"):
        session.upload_tar(io.BytesIO(), root)
    assert sorted(os.listdir(session.directory)) == before


def test_copying_to_a_branch_that_does_not_run_is_refused(session: Session) -> None:
    session.context.platform.cgroup(session.main.record.incarnation).kill()
    with pytest.raises(Broken, match="is not running"):
        session.read_file("/etc/hostname")
    with pytest.raises(Broken, match="is not running"):
        session.write_file("/srv/x", "x")


def test_a_copy_is_recorded_with_its_time(session: Session) -> None:
    session.write_file("/srv/x", "x")
    last = session.operations()[-1]
    assert (last.kind, last.branch) == ("write_file", "main")
    assert 0 < last.phases_ms["copy"] <= (last.total_ms or 0)
