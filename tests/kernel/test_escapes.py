"""Ways out of a branch, tried as root inside it. Each must fail: in the first branch, restored, and in a fork."""

import os
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.workload import install_workloads
from waypoint import Branch, Session, Waypoint
from waypoint.model import Network, NetworkMode, Walls

REMOUNT, BIND, READ_ONLY, RECURSIVE = 0x20, 0x1000, 0x1, 0x4000


@dataclass(frozen=True)
class Prison:
    """A branch as created, forked and restored, next to another session, on a host with listeners and secrets."""

    branches: dict[str, Branch]
    other: Session
    abstract_socket: str
    socket_file: Path
    port: int
    stranger: "subprocess.Popen[bytes]"
    state_dir: Path

    def fill(self, word: str) -> str:
        """Replace the placeholders for things of the host in a word of an attempt."""
        record = self.other.main.record
        values = {
            "STATE": os.fspath(self.state_dir),
            "OTHER_BRANCH": os.fspath(self.other.directory.resolve()),
            "OTHER_PID": str(record.init_pid),
            "HOST_PID": str(self.stranger.pid),
            "ABSTRACT": f"@{self.abstract_socket}",
            "SOCKET_FILE": os.fspath(self.socket_file),
            "PORT": str(self.port),
        }
        for name, value in values.items():
            word = word.replace(f"<{name}>", value)
        return word


@pytest.fixture(scope="module")
def prison(state_dir: Path) -> Iterator[Prison]:
    with ExitStack() as stack:
        waypoint = stack.enter_context(Waypoint(state_dir))
        workspace = Path(f"/var/tmp/waypoint-workspace-{secrets.token_hex(4)}")
        workspace.mkdir()
        stack.callback(workspace.rmdir)
        in_file = stack.enter_context(socket.socket(socket.AF_UNIX))
        in_file.bind(os.fspath(workspace / "socket"))
        stack.callback((workspace / "socket").unlink)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0waypoint-test-{secrets.token_hex(8)}")
        on_loopback = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for listener in (in_file, abstract):
            listener.listen()
        stranger = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
        stack.callback(stranger.send_signal, signal.SIGKILL)
        isolated = Network(mode=NetworkMode.ISOLATED)
        session = waypoint.create(workspace, network=isolated)
        stack.callback(session.cleanup, force=True)
        other = waypoint.create(workspace, network=isolated)
        stack.callback(other.cleanup, force=True)
        install_workloads(session)
        session.snapshot("point")
        fork, restored = session.fork("point", ids=["fork", "restored"])
        restored.restore("point")
        yield Prison(
            branches={"first": session.main, "fork": fork, "restored": restored},
            other=other,
            abstract_socket=abstract.getsockname()[1:].decode(),
            socket_file=workspace / "socket",
            port=on_loopback.getsockname()[1],
            stranger=stranger,
            state_dir=state_dir,
        )


def _mount(source: str, target: str, kind: str, *flags: int) -> list[str]:
    return ["mount", source, target, kind, f"{sum(flags):x}"]


ATTEMPTS: dict[str, tuple[list[str], str]] = {
    # mounts
    "mount a file system": (_mount("none", "/mnt", "tmpfs"), "EPERM"),
    "mount a fresh /proc": (_mount("proc", "/mnt", "proc"), "EPERM"),
    "mount a fresh /sys": (_mount("sysfs", "/mnt", "sysfs"), "EPERM"),
    "mount the cgroups": (_mount("none", "/mnt", "cgroup2"), "EPERM"),
    "mount the root elsewhere": (_mount("/", "/mnt", "", BIND), "EPERM"),
    "make /proc/sys writable": (_mount("", "/proc/sys", "", REMOUNT, BIND), "EPERM"),
    "make /sys writable": (_mount("", "/sys", "", REMOUNT, BIND), "EPERM"),
    "allow devices everywhere": (_mount("", "/", "", REMOUNT, BIND), "EPERM"),
    "take a mask off": (["unmount", "/proc/keys"], "EPERM"),
    "uncover /proc/sys": (["unmount", "/proc/sys"], "EPERM"),
    "uncover /dev": (["unmount", "/dev"], "EPERM"),
    "change the root": (["syscall", "pivot_root"], "EPERM"),
    "mount by the new calls": (["syscall", "fsopen"], "EPERM"),
    "open a mount tree": (["syscall", "open_tree"], "EPERM"),
    "change mount flags": (["syscall", "mount_setattr"], "EPERM"),
    # namespaces
    **{f"a {kind} namespace": (["unshare", kind], "EPERM") for kind in ("user", "mnt", "net", "pid")},
    **{f"a child in a {kind} namespace": (["clone", kind], "EPERM") for kind in ("user", "mnt", "cgroup")},
    "clone3, whose flags cannot be seen": (["syscall", "clone3"], "ENOSYS"),
    "enter a namespace": (["syscall", "setns"], "EPERM"),
    # files of the kernel
    "set the core handler of the host": (["write", "/proc/sys/kernel/core_pattern"], "EROFS"),
    "make the host reboot at an oops": (["write", "/proc/sys/kernel/panic_on_oops"], "EROFS"),
    "set a limit of the kernel": (["write", "/proc/sys/vm/overcommit_memory"], "EROFS"),
    "write /proc/irq": (["write", "/proc/irq/default_smp_affinity"], "EROFS"),
    "write /sys": (["write", "/sys/bus/platform/drivers_autoprobe"], "EROFS"),
    "read the keys of the host": (["read", "/proc/keys"], "EACCES"),
    "read the timers of the host": (["read", "/proc/timer_list"], "EACCES"),
    "read the interrupts of the host": (["read", "/proc/interrupts"], "EACCES"),
    "look at the firmware": (["listing", "/sys/firmware"], "ENOENT"),
    "read the log of the kernel": (["read", "/proc/kmsg"], "EPERM"),
    "ask for the log of the kernel": (["kernel_log"], "EPERM"),
    # devices
    "make a disk": (["make_disk"], "EPERM"),
    "open the disk of the machine": (["read", "/dev/vda"], "ENOENT"),
    "open the memory of the machine": (["read", "/dev/mem"], "ENOENT"),
    # the kernel itself
    **{
        f"call {name}": (["syscall", name], "EPERM")
        for name in (
            *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "bpf"),
            *(
                "perf_event_open",
                "userfaultfd",
                "io_uring_setup",
                "add_key",
                "request_key",
                "keyctl",
                "reboot",
            ),
            *("open_by_handle_at", "pidfd_getfd", "acct", "swapon", "quotactl"),
        )
    },
    "set the clock": (["set_clock"], "EPERM"),
    "set the host name": (["set_hostname"], "EPERM"),
    "talk to the hypervisor": (["socket_of", "40"], "EAFNOSUPPORT"),
    "use the crypto engines of the kernel": (["socket_of", "38"], "EAFNOSUPPORT"),
    # other processes
    "trace a process of the host": (["trace", "<HOST_PID>"], "ESRCH"),
    "trace another branch": (["trace", "<OTHER_PID>"], "ESRCH"),
    "signal a process of the host": (["signal", "<HOST_PID>"], "ESRCH"),
    "signal another branch": (["signal", "<OTHER_PID>"], "ESRCH"),
    "trace init": (["trace", "1"], "EPERM"),
    "write the memory of init": (["write", "/proc/1/mem"], "EACCES"),
    "go through the root of init": (["listing", "/proc/1/root/"], "EACCES"),
    "go through a descriptor of init": (["listing", "/proc/1/fd/0/"], "EACCES"),
    # files of others
    "look into the state directory": (["listing", "<STATE>"], "ENOENT"),
    "look at it through /proc/self/root": (["listing", "/proc/self/root/../..<STATE>"], "ENOENT"),
    "look at it through /proc/self/cwd": (["listing", "/proc/self/cwd/../../../../..<STATE>"], "ENOENT"),
    "look at it from outside a chroot": (["leave_chroot", "<STATE>"], "ENOENT"),
    "look at another branch": (["listing", "<OTHER_BRANCH>"], "ENOENT"),
    "link to the catalogue": (["link", "<STATE>/catalogue.db"], "ENOENT"),
    # connect to the host
    "talk to init": (["connect_unix", "/.waypoint/sock"], "ECONNRESET"),
    "connect to an abstract socket of the host": (["connect_unix", "<ABSTRACT>"], "ECONNREFUSED"),
    "connect to a socket file of the host": (["connect_unix", "<SOCKET_FILE>"], "ECONNREFUSED"),
    "connect to the loopback of the host": (["connect", "127.0.0.1", "<PORT>"], "ECONNREFUSED"),
    "send a packet to a network": (["send_packet", "192.0.2.1"], "ENETUNREACH"),
}


@pytest.mark.parametrize("life", ["first", "fork", "restored"])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_there_is_no_way_to(prison: Prison, name: str, life: str) -> None:
    words, refusal = ATTEMPTS[name]
    program = ["python3", "/tmp/programs/workloads/escape.py", *map(prison.fill, words)]
    assert prison.branches[life].exec_isolated(program).output == f"refused: {refusal}\n"


def test_without_the_walls_the_same_attempts_succeed(waypoint: Waypoint, workspace: Path) -> None:
    session = waypoint.create(workspace, walls=Walls(privileged=True))
    try:
        install_workloads(session)
        for words in (
            _mount("none", "/mnt", "tmpfs"),
            ["unmount", "/mnt"],
            ["unshare", "mnt"],
            ["clone", "net"],
            ["read", "/proc/keys"],
            ["make_disk"],
            ["set_hostname"],
            ["trace", "1"],
        ):
            tried = session.exec_isolated(["python3", "/tmp/programs/workloads/escape.py", *words])
            assert tried.output.startswith("got through"), words
    finally:
        session.cleanup(force=True)


def test_no_descriptor_of_init_reaches_outside(prison: Prison) -> None:
    for branch in prison.branches.values():
        held = []
        for fd in Path(f"/proc/{branch.record.init_pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was the connection of the last command
                held.append(os.readlink(fd))
        kinds = re.compile(
            r"/dev/null|/dev/pts/(ptmx|\d+)|/\.waypoint/main/(status|go)|(socket|pipe):\[\d+\]"
        )
        assert [link for link in held if not kinds.fullmatch(link)] == []
        assert branch.exec("ls -1 /proc/$$/fd").output.split() == ["0", "1", "2", "255"]
        assert branch.exec_isolated("ls -1 /proc/self/fd").output.split() == ["0", "1", "2", "3"]
