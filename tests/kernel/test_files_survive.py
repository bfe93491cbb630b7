"""Open and closed files survive a restore and a fork, and stay in their branch."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from support.returning import return_after
from support.workload import assert_workload_survives
from waypoint import Session
from workloads.open_files import BASE_FILE, BASE_TEXT


@pytest.fixture
def workspace(workspace: Path) -> Path:
    """A workspace with files in it, which a session sees as part of its base."""
    (workspace / BASE_FILE).write_bytes(BASE_TEXT)
    (workspace / "doomed").write_text("to be deleted")
    tree = workspace / "tree" / "deep"
    tree.mkdir(parents=True)
    for name in ("a", "b"):
        (tree / name).write_text(name)
    (workspace / "link").symlink_to("original.txt")
    return workspace


@pytest.mark.parametrize(
    "workload",
    """deleted_file big_deleted_file deleted_base_file replaced_file renamed_file deleted_name_of_linked_file
    positions deleted_directory pipe_with_data fifo_with_data unix_sockets shared_mapping mapping_of_base_file
    shared_memory file_locks""".split(),
)
def test_a_process_still_has_its(session: Session, workload: str) -> None:
    assert_workload_survives(session, "open_files", workload)


# The command to set up, the one to spoil it, the one to check it, and its output.
FILES = {
    "created": ("echo new >new", "rm new", "cat new", "new\n"),
    "changed": (
        f"echo more >>{BASE_FILE}",
        f"echo x >{BASE_FILE}",
        f"cat {BASE_FILE}",
        "text of the base\nmore\n",
    ),
    "deleted": ("rm doomed", "echo back >doomed", "ls doomed 2>/dev/null || echo gone", "gone\n"),
    "renamed": (
        f"mv {BASE_FILE} other",
        f"mv other {BASE_FILE}",
        f"cat other; test -e {BASE_FILE} || echo moved",
        "text of the base\nmoved\n",
    ),
    "exchanged": (
        f"mv doomed t; mv {BASE_FILE} doomed; mv t {BASE_FILE}",
        "rm doomed",
        f"cat doomed {BASE_FILE}",
        "text of the base\nto be deleted",
    ),
    "directory of the base renamed": (
        "mv tree wood; rm wood/deep/a; echo c >wood/deep/c",
        "rm -r wood",
        "find tree wood 2>/dev/null | sort; cat wood/deep/b",
        "wood\nwood/deep\nwood/deep/b\nwood/deep/c\nb",
    ),
    "directory of the base moved deeper": (
        "mkdir x; mv tree/deep x/deep; mv x tree/x",
        "mv tree/x/deep x",
        "find tree | sort; cat tree/x/deep/a",
        "tree\ntree/x\ntree/x/deep\ntree/x/deep/a\ntree/x/deep/b\na",
    ),
    "directory replaced": (
        "rm -r tree; mkdir tree; touch tree/only",
        "rm -r tree",
        "find tree | sort",
        "tree\ntree/only\n",
    ),
    "hard links": (
        "echo h >h1; ln h1 h2; echo more >>h2",
        "rm h2; echo x >h1",
        "stat -c %h h1; [ h1 -ef h2 ] && cat h1",
        "2\nh\nmore\n",
    ),
    "hard link to a base file": (
        f"ln {BASE_FILE} h; echo more >>h",
        "rm h",
        f"stat -c %h h; cat {BASE_FILE}",
        "2\ntext of the base\nmore\n",
    ),
    "symbolic links": (
        "ln -s nowhere dangling; ln -sfn tree/deep link",
        "rm dangling; ln -sfn / link",
        "readlink dangling link",
        "nowhere\ntree/deep\n",
    ),
    "extended attributes": (
        'python3 -c \'import os; os.setxattr("tree", "user.mark", b"seen")\'',
        'python3 -c \'import os; os.removexattr("tree", "user.mark")\'',
        'python3 -c \'import os,sys; sys.stdout.buffer.write(os.getxattr("tree", "user.mark"))\'',
        "seen",
    ),
    "owner, mode and time": (
        "touch f; chown 1234:4321 f; chmod 4751 f; touch -d @1000000000 f",
        "rm f",
        "stat -c '%u %g %a %Y' f",
        "1234 4321 4751 1000000000\n",
    ),
    "sparse": (
        "truncate -s 3G hole; echo end >>hole",
        "rm hole",
        "stat -c %s hole; tail -c 4 hole; [ $(stat -c %b hole) -lt 1000 ] && echo sparse",
        "3221225476\nend\nsparse\n",
    ),
    "special": (
        "mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
        "rm pipe sock",
        "stat -c %F pipe sock; (echo through >pipe &); cat pipe",
        "fifo\nsocket\nthrough\n",
    ),
    "in /tmp": (
        "mkdir /tmp/d; echo t >/tmp/d/f",
        "rm -r /tmp/d",
        "cat /tmp/d/f; stat -c %a /tmp",
        "t\n1777\n",
    ),
    "in /run": ("mkdir /run/d; echo r >/run/d/f", "rm -r /run/d", "cat /run/d/f", "r\n"),
    "in /dev/shm": (
        "echo s >/dev/shm/f",
        "rm /dev/shm/f",
        "cat /dev/shm/f; stat -c %a /dev/shm",
        "s\n1777\n",
    ),
    "in the system": (
        "echo changed >/etc/debian_version; rm -r /usr/share/common-licenses",
        "echo x >/etc/debian_version",
        "cat /etc/debian_version; ls /usr/share/common-licenses 2>/dev/null || echo gone",
        "changed\ngone\n",
    ),
}


@pytest.mark.parametrize(("do", "spoil", "ask", "answer"), FILES.values(), ids=FILES)
def test_files_survive_a_restore_and_a_fork(
    session: Session, do: str, spoil: str, ask: str, answer: str
) -> None:
    done = session.exec(do)
    assert done.exit_code == 0, done.output
    assert session.exec(ask).output == answer
    for branch in return_after(session, spoil):
        assert branch.exec(ask).output == answer


@pytest.mark.quick
def test_two_forks_and_their_origin_never_see_each_others_writes(session: Session) -> None:
    session.exec("echo common >shared; mkdir dir")
    branches = [session.main, *session.fork(session.snapshot(), n=2)]
    for branch in branches:
        branch.exec(
            f"echo {branch.name} >>shared; touch dir/{branch.name} /tmp/{branch.name} /dev/shm/{branch.name}"
        )
    branches[1].exec("rm doomed")
    for branch in branches:
        seen = branch.exec("cat shared; ls dir; ls doomed 2>&1 | tail -1; ls /dev/shm").output.split()
        assert seen[:3] == ["common", branch.name, branch.name]
        assert seen[-1] == branch.name
        assert (seen[3] == "doomed") is (branch is not branches[1])


def test_the_host_sees_the_live_files_of_each_branch_at_a_fixed_path(
    session: Session, workspace: Path
) -> None:
    inside = os.fspath(workspace).lstrip("/")
    at = session.directory
    session.exec("echo one >note")
    saved = session.snapshot()
    (fork,) = session.fork(saved)
    session.exec("echo two >note")
    fork.exec("echo three >note")
    assert (at / inside / "note").read_text() == "two\n"
    assert (fork.directory / inside / "note").read_text() == "three\n"
    session.restore(saved)
    assert session.directory == at
    assert (at / inside / "note").read_text() == "one\n"


def test_the_real_workspace_never_changes(session: Session, workspace: Path) -> None:
    before = _fingerprint(workspace)
    session.exec(f"rm doomed; echo x >>{BASE_FILE}; mv tree wood; chmod 700 .; chown 1 link; touch new")
    saved = session.snapshot()
    session.exec("rm -rf ./*")
    (fork,) = session.fork(saved)
    fork.exec("rm -rf ./*; touch of-the-fork")
    session.restore(saved)
    assert session.exec("ls -1").output == "link\nnew\noriginal.txt\nwood\n"
    assert _fingerprint(workspace) == before


def _fingerprint(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything known about the files below ``directory``, except their access times."""
    return {os.fspath(path): _facts(path) for path in (directory, *directory.rglob("*"))}


def _facts(path: Path) -> tuple[object, ...]:
    facts = path.lstat()
    if stat.S_ISREG(facts.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        content = os.readlink(path) if path.is_symlink() else ""
    return (
        facts.st_ino,
        facts.st_mode,
        facts.st_uid,
        facts.st_nlink,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
        content,
    )


def test_inode_numbers_are_the_same_in_every_branch(session: Session) -> None:
    numbers = "stat -c %i /tmp /etc /etc/hosts /root/own /dev/shm"
    session.exec("echo own >/root/own")
    before = session.exec(numbers).output
    session.snapshot("point")
    (fork,) = session.fork("point")
    session.restore("point")
    assert session.exec(numbers).output == fork.exec(numbers).output == before
    assert session.exec("stat -c %d / /etc /etc/hosts /root/own | sort -u | wc -l").output == "1\n"
