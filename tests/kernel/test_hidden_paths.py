"""What a session over the host's root does not see, whatever its programs do and whenever the host creates it."""

import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.returning import return_after
from waypoint import Branch, Session, Waypoint
from waypoint.kernel.storage.mounts import detach_all
from waypoint.kernel.syscalls import MNT_DETACH, mount, unmount

NEEDLE = "needle-" + secrets.token_hex(8)
MS_BIND = 4096
OPEN_BY_HANDLE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
handle = (ctypes.c_uint * 34)(128)
number = ctypes.c_int()
assert libc.name_to_handle_at(-100, b"/etc/passwd", handle, ctypes.byref(number), 0) == 0 or True
fd = libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, 0)
print(fd, os.strerror(ctypes.get_errno()))
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The caller's home, with files in it that a session must not see."""
    path = Path(f"/var/tmp/waypoint-home-{secrets.token_hex(4)}")
    for name in (
        ".ssh/id_rsa",
        ".config/gcloud/credentials.db",
        ".netrc",
        ".bash_history",
        ".kube/cache/x/config",
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"{NEEDLE} {name}\n")
    (path / ".ssh").chmod(0o700)
    (path / "project").mkdir()
    (path / "project/readme").write_text("seen\n")
    (path / ".npmrc").write_text(f"fund=false\n//npm.example/:_authToken={NEEDLE}\n")
    monkeypatch.setenv("HOME", os.fspath(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def session(waypoint: Waypoint, home: Path, leaves_nothing_behind: None) -> Iterator[Session]:
    created = waypoint.create(home / "project")
    yield created
    created.cleanup(force=True)


def assert_unseen(branch: Branch | Session, *directories: Path | str) -> None:
    """Check that no file below the directories contains the needle."""
    seen = branch.exec(f"grep -rsl {NEEDLE} {' '.join(map(str, directories))}")
    assert seen.output == ""
    assert seen.exit_code in (1, 2)  # 2: there is no such file


@pytest.mark.quick
def test_private_files_are_hidden_in_every_branch(session: Session, home: Path) -> None:
    for branch in [session.main, *return_after(session, "true")]:
        assert_unseen(branch, home)
        listed = branch.exec("cat readme ../.npmrc; ls -1A .. ../.ssh ../.config; stat -c %a ../.ssh").output
        assert listed == (
            "seen\nfund=false\n..:\n.config\n.kube\n.npmrc\n.ssh\nproject\n\n../.config:\ngcloud\n\n../.ssh:\n700\n"
        )
    assert f"{home}/.ssh" in session.record.settings.hidden


def test_files_the_host_creates_later_are_hidden_too(session: Session, home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(NEEDLE)
    (home / ".ssh/id_new").write_text(NEEDLE)
    (home / ".git-credentials").write_text(NEEDLE)
    for name in (".cargo/credentials.toml", ".local/share/keyrings/login", ".config/gh/hosts.yml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)  # as programs do at login
        (home / name).write_text(NEEDLE)
    (home / "project/new").write_text("seen too\n")
    for branch in [session.main, *return_after(session, "true")]:
        assert_unseen(branch, home)
        assert branch.exec("cat new; ls ../.aws").output.startswith("seen too\nls: cannot access")
        assert branch.exec("mkdir -p ../.cargo/bin && ls -A ../.cargo").output == "bin\n"


def test_programs_inside_can_create_their_own_files_there(session: Session, home: Path) -> None:
    session.exec(
        "echo mine >../.ssh/id_rsa; echo mine >../.netrc; mkdir ../.aws; echo mine >../.aws/credentials"
    )
    for branch in return_after(session, "rm -rf ../.ssh ../.netrc ../.aws"):
        assert branch.exec("cat ../.ssh/id_rsa ../.netrc ../.aws/credentials").output == "mine\n" * 3
        branch.exec("rm -rf ../.ssh ../.netrc ../.aws")
        assert_unseen(branch, home)
        assert branch.exec("mkdir ../.ssh && ls -A ../.ssh").output == ""
    assert NEEDLE in (home / ".ssh/id_rsa").read_text()


@pytest.mark.parametrize(
    "attempt",
    [
        "mv ../.ssh ../shown; mv ../.kube ../shown2",
        "mv .. /var/tmp/moved-needle",
        "rmdir ../.ssh; mkdir ../.ssh",
        "rm -rf ../.ssh; ln -s id ../.ssh; rm ../.ssh",
        "cd ..; rm -rf .ssh .netrc .kube .config; touch .netrc; rm .netrc",
        "ln ../.netrc ../linked",
        "mv ../.config ../config; mv ../config ../.config",
        "setfattr -x trusted.overlay.opaque ../.ssh; setfattr -n trusted.overlay.redirect -v /etc ../.ssh",
        "setfattr -n user.overlay.opaque -v n ../.ssh",
        "mknod ../.netrc c 0 0; rm -f ../.netrc",
        "mount -t overlay -o lowerdir=/,upperdir=/tmp,workdir=/srv overlay /mnt",
        "mount --bind / /mnt; mount -t tmpfs none /mnt",
        "unshare -m umount -l /",
        "cp -a /proc/1/root/$OLDPWD/../.ssh ../copied",
        "chroot /proc/1/root cat $HOME/.netrc",
        "exec 9</; cd /proc/self/fd/9",
    ],
)
def test_no_program_inside_can_uncover_hidden_files(session: Session, home: Path, attempt: str) -> None:
    session.exec(f"export HOME={home}; cd {home}; cd project; ({attempt}) 2>/dev/null", timeout_s=60)
    searched = (str(home), "/mnt", "/var/tmp/moved*", f"/proc/1/root{home}", f"/proc/1/cwd{home}")
    assert_unseen(session, *searched)
    session.fork("main", ids=["fork"])
    assert_unseen(session.branch("fork"), *searched)


def test_files_cannot_be_opened_by_file_handle(session: Session) -> None:
    answer = session.exec(f"python3 - <<'EOF'\n{OPEN_BY_HANDLE}EOF").output
    assert answer == "-1 Operation not permitted\n"


def test_passwords_of_the_host_are_locked_and_users_can_be_added(session: Session) -> None:
    users = [line.split(":")[:2] for line in session.exec("cat /etc/shadow /etc/gshadow").output.splitlines()]
    assert len(users) > 10
    assert all(password.strip("!*") == "" for _, password in users)
    made = session.exec(
        "useradd -m guest && echo guest:guest | chpasswd && su guest -s /bin/sh -c 'id -un; cd; pwd'"
    )
    assert made.output == "guest\n/home/guest\n"
    assert (
        session.exec("cat /etc/shadow- /etc/ssh/ssh_host_*_key 2>/dev/null | grep -c PRIVATE").output == "0\n"
    )
    assert session.exec("stat -c '%a %U:%G' /etc/shadow").output == _facts("/etc/shadow")


def _facts(path: str) -> str:
    status = os.stat(path)
    group = "shadow" if status.st_gid else "root"
    return f"{status.st_mode & 0o777:o} root:{group}\n"


def test_a_socket_of_the_host_cannot_be_reached(session: Session, home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(home / "project/engine.sock"))
        server.listen()
        connect = "import socket; socket.socket(socket.AF_UNIX).connect('engine.sock')"
        for branch in [session.main, *return_after(session, "true")]:
            answer = branch.exec(f'ls engine.sock; python3 -c "{connect}" 2>&1 | tail -1').output
            assert answer == "engine.sock\nConnectionRefusedError: [Errno 111] Connection refused\n"


def test_the_start_directory_is_shown(waypoint: Waypoint, home: Path, leaves_nothing_behind: None) -> None:
    session = waypoint.create(home / ".kube/cache")
    assert session.exec("cat x/config").output == f"{NEEDLE} .kube/cache/x/config\n"
    assert session.record.settings.shown == (f"{home}/.kube",)
    assert_unseen(session, home / ".ssh", home / ".netrc")
    session.cleanup()


def test_the_options_hide_and_show_work(waypoint: Waypoint, home: Path, leaves_nothing_behind: None) -> None:
    session = waypoint.create(home / "project", hide=["~/project/read*"], show=[f"{home}/.ssh"])
    assert session.exec("ls; cut -d' ' -f1 ../.ssh/id_rsa").output == f"{NEEDLE}\n"
    assert_unseen(session, home / ".netrc")
    session.cleanup()


def test_files_on_another_file_system_are_hidden_too(
    waypoint: Waypoint, home: Path, leaves_nothing_behind: None
) -> None:
    disk = home / "disk"
    disk.mkdir()
    mount("tmpfs", disk, "tmpfs", 0, "size=16m,mode=755")
    try:
        (disk / "me/.ssh").mkdir(parents=True)
        (disk / "me/.ssh/id").write_text(NEEDLE)
        (disk / "me/.netrc").write_text(NEEDLE)
        (disk / "me/work").mkdir()
        session = waypoint.create(disk / "me/work", hide=[f"{disk}/me/.ssh", f"{disk}/me/.netrc"])
        for branch in [session.main, *return_after(session, "true")]:
            assert_unseen(branch, home)
            assert branch.exec("ls -1A ..").output == ".ssh\nwork\n"
        session.cleanup(force=True)
    finally:
        unmount(disk, MNT_DETACH)


def test_a_hidden_directory_is_hidden_at_every_path_with_its_mounts(
    waypoint: Waypoint, home: Path, leaves_nothing_behind: None
) -> None:
    again, disk = home / "again", home / ".kube/disk"
    for directory in (again, disk, home / "store"):
        directory.mkdir()
    (home / "store/file").write_text(NEEDLE)
    mount(os.fspath(home / ".ssh"), again, "", MS_BIND)
    mount(os.fspath(home / "store"), disk, "", MS_BIND)  # as container engines mount their stores
    try:
        session = waypoint.create(home / "project", hide=["~/store"])
        for branch in [session.main, *return_after(session, "true")]:
            assert_unseen(branch, home)
            assert branch.exec("ls -1A ../again ../.kube").output == "../.kube:\n\n../again:\n"
        session.cleanup(force=True)
    finally:
        detach_all(again)
        detach_all(disk)


def test_other_state_directories_are_hidden(
    waypoint: Waypoint, home: Path, leaves_nothing_behind: None
) -> None:
    state = home / "state"
    (state / "pool").mkdir(parents=True)
    (state / "pool.json").write_text(NEEDLE)
    (state / "catalogue.db").write_text(NEEDLE)
    mount("tmpfs", state / "pool", "tmpfs", 0, "size=1m")
    try:
        session = waypoint.create(home / "project")
        assert_unseen(session, home)
        assert session.exec("ls -A ../state").output == ""
        session.cleanup()
    finally:
        unmount(state / "pool", MNT_DETACH)


@pytest.mark.parametrize("part", ["..", ".", "pool"])
def test_the_state_directory_is_hidden_at_every_path(
    waypoint: Waypoint, home: Path, state_dir: Path, leaves_nothing_behind: None, part: str
) -> None:
    again = home / "again"
    again.mkdir()
    mount(os.path.realpath(state_dir / part), again, "", MS_BIND)
    try:
        session = waypoint.create(home / "project")
        for branch in [session.main, *return_after(session, "true")]:
            path = f"../again/{state_dir.name}" if part == ".." else "../again"
            assert branch.exec(f"ls -A {path} && ls -1 ../project").output == "readme\n"
        session.cleanup(force=True)
    finally:
        detach_all(again)


def test_a_user_cannot_redirect_hiding_to_files_of_another(
    waypoint: Waypoint, home: Path, leaves_nothing_behind: None
) -> None:
    (home / ".aws").symlink_to("/usr")
    os.lchown(home / ".aws", 1000, 1000)
    session = waypoint.create(home / "project")
    assert session.exec("ls -d /usr/bin; ls ../.aws").output.startswith("/usr/bin\nls: cannot access")
    session.cleanup()
