"""Each restored or forked branch has the walls of the first: process by process, thread by thread, mount by mount."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.small_root import make_small_root
from support.waiting import DEADLINE_S, wait_until
from support.walls import BranchWalls, ProcessWalls, look_at_walls
from support.workload import assert_unharmed, assert_workload_survives, start_workload
from waypoint import Branch, Session, Waypoint
from waypoint.errors import LaunchFailed, NotFound, UsageError
from waypoint.kernel.processes.launcher import start_branch
from waypoint.kernel.storage.mounts import detach_all
from waypoint.kernel.syscalls import mount
from waypoint.model import Network, NetworkMode, Walls

DOCKER_CAPABILITIES = 0xA80425FB
MKNOD, NET_RAW = 1 << 27, 1 << 13
MS_BIND = 4096
OWN_NAMESPACES = {"mnt", "pid", "net", "ipc", "uts"}


@pytest.fixture
def make(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator["Make"]:
    maker = Make(waypoint, workspace)
    yield maker
    for session in maker.made:
        session.cleanup(force=True)


class Make:
    """Makes sessions over the host's root that are removed after the test."""

    def __init__(self, waypoint: Waypoint, workspace: Path) -> None:
        self.waypoint = waypoint
        self.workspace = workspace
        self.made: list[Session] = []

    def __call__(
        self,
        walls: Walls | None = None,
        *,
        user: str | None = None,
        network: Network | None = None,
        shell: str | None = None,
        attended: bool = False,
    ) -> Session:
        session = self.waypoint.create(
            self.workspace, walls=walls, user=user, network=network, shell=shell, attended=attended
        )
        self.made.append(session)
        return session


def lives(session: Session) -> Iterator[Branch]:
    """Yield the first branch, then a fork of it, a fork of that fork, and the first branch restored."""
    yield session.main
    session.snapshot("first")
    (fork,) = session.fork("first", ids=["fork"])
    yield fork
    fork.snapshot("second")
    (forked_again,) = session.fork("second", ids=["forked-again"])
    yield forked_again
    session.restore("second")
    yield session.main


every_height = pytest.mark.parametrize(
    "walls",
    [
        Walls(),
        Walls(no_new_privs=True, read_only_base=True),
        Walls(privileged=True),
        Walls(privileged=True, read_only_base=True),
    ],
    ids=["as they are by default", "all of them", "none of them", "none but a read-only base"],
)


@pytest.mark.quick
@every_height
def test_forked_and_restored_branches_have_the_same_walls(make: Make, walls: Walls) -> None:
    session = make(walls)
    start_workload(session, "confined", "filtered")
    session.start_isolated("exec sleep 1001")
    session.start_isolated("exec tail -f /dev/null", user="nobody")
    session.main.open_terminal("other")
    wait_until(session, "pgrep -x sleep >/dev/null && pgrep -x tail >/dev/null")
    seen: list[BranchWalls] = []
    for branch in lives(session):
        seen.append(look_at_walls(branch))
        assert len(seen[0].processes) >= 8  # init, two shells, two jobs, a process of four threads
        assert seen[-1].mounts == seen[0].mounts
        assert seen[-1].processes == seen[0].processes
    assert_unharmed(session.main)


@every_height
def test_branches_from_files_only_checkpoints_have_the_same_walls(make: Make, walls: Walls) -> None:
    session = make(walls)
    session.exec("true")
    first = look_at_walls(session)
    saved = session.snapshot(files_only=True)
    (fork,) = session.fork(saved)
    session.restore(saved)
    for branch in (fork, session.main, *session.fork(fork)):
        branch.exec("true")
        seen = look_at_walls(branch)
        assert seen.mounts == first.mounts
        assert by_command(seen) == by_command(first)


def by_command(walls: BranchWalls) -> dict[str, ProcessWalls]:
    """The walls by command only, because init and its shell are new and have other pids."""
    return {command: walls for (command, _), walls in walls.processes.items()}


def test_the_default_walls_are_at_least_as_strict_as_those_of_docker(make: Make) -> None:
    session = make()
    session.start_isolated("exec sleep 1001", user="nobody")
    wait_until(session, "pgrep -x sleep >/dev/null")
    for branch in lives(session):
        walls = look_at_walls(branch)
        for process in walls.processes.values():
            assert int(process["CapBnd"], 16) == DOCKER_CAPABILITIES & ~MKNOD
            assert int(process["CapInh"], 16) == int(process["CapAmb"], 16) == 0
            assert int(process["CapPrm"], 16) & ~int(process["CapBnd"], 16) == 0
            assert (process["Seccomp"], process["Seccomp_filters"], process["NoNewPrivs"]) == ("2", "1", "0")
            assert process["Groups"] == ""
            assert set(process.shared_with_host).isdisjoint(OWN_NAMESPACES)
            assert process.is_in_its_cgroup
        (nobody,) = (one for one in walls.processes.values() if one["Uid"].startswith("65534"))
        assert int(nobody["CapPrm"], 16) == 0
        assert "/ / rw,nodev,relatime overlay" in walls.mounts
        assert "/sys /proc/sys ro,nosuid,nodev,noexec,relatime proc" in walls.mounts
        assert "/ /sys ro,nosuid,nodev,noexec,relatime sysfs" in walls.mounts
        assert not any("cgroup" in mount.split()[-1] for mount in walls.mounts)


def test_a_program_keeps_a_system_call_filter_of_its_own(session: Session) -> None:
    assert_workload_survives(session, "confined", "filtered")


def test_a_privileged_session_has_the_privileges_of_the_host(make: Make) -> None:
    session = make(Walls(privileged=True))
    own = Path("/proc/self/status").read_text()
    for branch in lives(session):
        for process in look_at_walls(branch).processes.values():
            assert f"CapBnd:\t{process['CapBnd']}\n" in own
            assert process["CapEff"] == process["CapBnd"]
            assert process["Seccomp"] == "0"
        written = branch.exec("cat /proc/sys/kernel/printk >/proc/sys/kernel/printk && mknod /srv/n c 1 3")
        assert written.exit_code == 0, written.output
        assert branch.exec("rm /srv/n; findmnt -no OPTIONS /sys").output.startswith("rw")


def test_a_privileged_session_cannot_have_an_allow_list(make: Make) -> None:
    network = Network(mode=NetworkMode.NAT, allowed=())
    with pytest.raises(UsageError, match="privileged"):
        make(Walls(privileged=True), network=network)


def test_setuid_programs_work_unless_privileges_are_locked(make: Make) -> None:
    for walls, seen in ((Walls(), "0"), (Walls(no_new_privs=True), "65534")):
        session = make(walls)
        session.exec("cp /usr/bin/id /srv/id; chmod 4755 /srv/id")
        for branch in lives(session):
            assert branch.exec_isolated(["/srv/id", "-u"], user="nobody").output == f"{seen}\n"


# --- a base that is read-only ----------------------------------------------------------------------------


def test_a_read_only_base_is_writable_only_in_the_workspace_and_temporary_directories(
    make: Make, tmp_path: Path
) -> None:
    session = make(Walls(read_only_base=True))
    (tmp_path / "file").write_text("x")
    for branch in lives(session):
        for directory in ("/etc", "/root", "/usr/bin", "/var/lib", "/"):
            refused = branch.exec(f"touch {directory}/made-inside")
            assert "Read-only file system" in refused.output, directory
        for directory in ("/tmp", "/var/tmp", "/run", "/dev/shm", session.record.workspace):
            written = branch.exec(f"echo {branch.name} >{directory}/made && cat {directory}/made")
            assert written.output == f"{branch.name}\n"
        branch.upload(tmp_path / "file", f"{session.record.workspace}/copied")
        assert branch.exec(f"cat {session.record.workspace}/copied").output == "x"
        branch.open_terminal("other")
        assert branch.exec("tty", terminal="other").exit_code == 0
        branch.close_terminal("other")
    assert os.listdir(session.record.workspace) == []


@pytest.fixture
def many_disks() -> Iterator[list[Path]]:
    """More file systems of the host than anyone expected."""
    top = Path(f"/srv/waypoint-disks-{secrets.token_hex(4)}")
    disks = [top / f"disk{number}" for number in range(40)]
    try:
        for disk in disks:
            disk.mkdir(parents=True)
            mount(os.fspath(top), disk, "", MS_BIND)
        yield disks
    finally:
        for disk in disks:
            detach_all(disk)
        shutil.rmtree(top)


def test_a_read_only_base_may_have_many_file_systems(make: Make, many_disks: list[Path]) -> None:
    session = make(Walls(read_only_base=True))
    for branch in lives(session):
        tried = branch.exec(f"cd {many_disks[0].parent}; for disk in *; do touch $disk/made; done")
        assert tried.output.count("Read-only file system") == len(many_disks)


def test_more_options_than_the_launcher_takes_are_refused_by_name(session: Session) -> None:
    options = [f"--read-only=/{number}" for number in range(1000)]
    with pytest.raises(LaunchFailed, match="too many of --cgroup, --read-only or --writable"):
        start_branch((os.fspath(session.context.platform.criu.launcher), "branch", *options))


@pytest.mark.parametrize("files_only", [True, False], ids=["files", "full"])
def test_a_link_that_replaced_the_workspace_makes_nothing_writable(
    make: Make, workspace: Path, files_only: bool
) -> None:
    (workspace / "a/work").mkdir(parents=True)
    make.workspace = workspace / "a/work"
    session = make(Walls(read_only_base=True))
    planted = session.exec(f"cd {workspace} && mv a b && mkdir a && ln -s /etc a/work")
    assert planted.exit_code == 0, planted.output
    saved = session.snapshot(files_only=files_only)
    (fork,) = session.fork(saved)
    session.restore(saved)
    for branch in (session.main, fork):
        for directory in ("/etc", f"{workspace}/a/work"):
            assert "Read-only file system" in branch.exec(f"touch {directory}/made-inside").output
        assert branch.exec(f"touch {workspace}/b/work/made").exit_code == 0


@pytest.mark.parametrize("target", ["/opt/app", "/tmp/a/work"], ids=["read-only", "writable"])
def test_a_workspace_behind_a_link_of_the_base_stays_writable_and_nothing_else_is(
    waypoint: Waypoint, tmp_path: Path, leaves_nothing_behind: None, target: str
) -> None:
    root = make_small_root(tmp_path / "root")
    (root / target.lstrip("/")).mkdir(parents=True)
    (root / "app").symlink_to(target)
    session = waypoint.create("/app", base=root, walls=Walls(read_only_base=True))
    assert session.exec("echo x >/app/made && cat /app/made").output == "x\n"
    session.exec("cd /; mv /tmp/a /tmp/b && mkdir /tmp/a && ln -s /etc /tmp/a/work")
    session.restore(session.snapshot(files_only=True))
    assert "Read-only file system" in session.exec("touch /etc/made-inside").output
    assert session.exec("cat /tmp/b/work/made /opt/app/made").output.count("x\n") == 1
    assert session.exec("touch /app/again").exit_code == (0 if target == "/opt/app" else 1)
    session.cleanup(force=True)


# --- devices ---------------------------------------------------------------------------------------------


def test_a_device_file_of_the_base_cannot_be_opened(make: Make, workspace: Path) -> None:
    null = workspace / "node"  # opening this one would do no harm, if it succeeded
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(workspace / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 255))
    session = make()
    for branch in lives(session):
        for node in (null, workspace / "disk"):
            assert "Permission denied" in branch.exec(f"cat {node}").output
        for spell in (
            f"mv {null} /dev/n; cat /dev/n",
            f"ln {null} /dev/n; cat /dev/n",
            f"cp -a {null} /dev/n; cat /dev/n",
            f"tar -C {workspace} -cf /tmp/t.tar node && tar -C /dev -xf /tmp/t.tar; cat /dev/node",
            "mknod /dev/n c 1 3; cat /dev/n",
        ):
            tried = branch.exec(spell)
            assert tried.exit_code != 0, spell
            assert "No such file" in tried.output.splitlines()[-1], spell
        assert branch.exec(
            "stat -c %t:%T /dev/null; cat /dev/null; head -c 2 /dev/zero | od -An -tx1"
        ).output == ("1:3\n 00 00\n")


def test_a_branch_has_only_the_usual_devices(session: Session) -> None:
    for branch in lives(session):
        found = branch.exec("cd /dev; find . \\( -type b -o -type c \\) -not -path './pts/*' | sort").output
        assert found.split() == ["./full", "./null", "./random", "./tty", "./urandom", "./zero"]


def test_masked_kernel_files_stay_masked_whatever_happens_to_the_files_of_the_branch(
    session: Session,
) -> None:
    session.exec("rm -f /dev/null /dev/zero; mv /.waypoint/bin /.waypoint/gone; mkdir /.waypoint/empty")
    before = look_at_walls(session).mounts
    for branch in lives(session):
        assert look_at_walls(branch).mounts == before
        assert "Permission denied" in branch.exec("cat /proc/timer_list").output
        assert "Read-only" in branch.exec("echo core >/proc/sys/kernel/core_pattern").output


# --- another user ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "dash"])
def test_shells_and_commands_run_as_the_user_of_the_session(make: Make, shell: str) -> None:
    session = make(user="daemon", shell=shell)
    who = "daemon daemon /usr/sbin daemon daemon"
    for branch in lives(session):
        assert who in branch.exec("echo $(id -un) $(id -gn) $HOME $USER $LOGNAME").output
        assert branch.exec_isolated("echo $(id -un) $(id -gn) $HOME $USER $LOGNAME").output == f"{who}\n"
        assert branch.exec_isolated("id -un", user="root").output == "root\n"
        assert branch.exec('test -O "$(tty)" && test -w "$(tty)"').exit_code == 0
        branch.open_terminal("other")
        assert "daemon\n" in branch.exec("id -un", terminal="other").output
        branch.close_terminal("other")
        refused = branch.exec("touch /.waypoint/x; rm -f /.waypoint/init; kill -9 1; echo x >/.waypoint/sock")
        assert refused.exit_code != 0
        assert branch.exec("true").exit_code == 0


def test_an_attended_session_runs_one_shell_as_that_user(make: Make) -> None:
    session = make(user="daemon", attended=True)
    for number, branch in enumerate(lives(session)):
        shells = [walls for (name, _), walls in look_at_walls(branch).processes.items() if name == "bash"]
        assert [shell["Uid"].split() for shell in shells] == [["1"] * 4]
        # Wait for a new answer, which comes when the shell is alone again: lives() continues from here.
        branch.send(f"echo $(id -un) {number}", "Enter")
        branch.wait_for(text=f"^daemon {number}$", timeout_s=DEADLINE_S)


def test_a_user_has_the_groups_of_the_base(make: Make) -> None:
    session = make()
    session.exec("groupadd -g 4321 one; groupadd -g 4322 two; useradd -m -u 4000 -G one,two walker")
    for branch in lives(session):
        assert branch.exec_isolated("id -G", user="walker").output == "4000 4321 4322\n"
        assert branch.exec_isolated("id -G", user="walker:two").output == "4322\n"
        assert branch.exec_isolated("id -G", user="4000:99").output == "99\n"


def test_an_unknown_user_is_refused_before_anything_is_made(make: Make) -> None:
    with pytest.raises(NotFound, match="no-such-user"):
        make(user="no-such-user")
