"""What a branch can reach, and what happens to its connections."""

import hashlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.crash import killed_at
from support.outside import ECHO_PORT, Outside, host_address, host_loopback_server, outside_host
from support.reaching import forges, kill_nat, reaches, run_python
from support.waiting import wait_until
from waypoint import Branch, Session, Waypoint
from waypoint.errors import EngineError, RestoreFailed
from waypoint.kernel.network import slirp
from waypoint.model import Network, NetworkMode
from waypoint.session.lifecycle.recovery import recover_abandoned
from waypoint.store.lock import locked

Creates = Callable[[NetworkMode], Session]

CONVERSATION = """
import socket, sys, time
outer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
listener = socket.create_server(("10.0.2.100", 0))
inner = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
is_idle = sys.argv[3] == "idle"
said = 0
try:
    while True:
        if not is_idle:
            outer.sendall(b"x")
        print("talking", flush=True)
        if not outer.recv(1):
            raise EOFError
        said += 1
        time.sleep(0.01)
except OSError as error:
    print(type(error).__name__, flush=True)
inner.sendall(b"y")
print("inside", other.recv(1).decode(), flush=True)
"""

UPLOAD = """
import hashlib, os, socket, sys
outer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sent, received = hashlib.sha256(), hashlib.sha256()
block = os.urandom(1 << 16)
while not os.path.exists("/tmp/enough"):
    outer.sendall(block)
    sent.update(block)
    left = len(block)
    while left:
        data = outer.recv(left)
        assert data
        received.update(data)
        left -= len(data)
    open("/tmp/began", "w").close()
print("whole" if sent.digest() == received.digest() else "broken")
"""


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with outside_host() as host:
        yield host


@pytest.fixture
def create(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[Creates]:
    made: list[Session] = []

    def create_one(mode: NetworkMode) -> Session:
        made.append(waypoint.create(workspace, network=Network(mode=mode)))
        return made[-1]

    yield create_one
    for session in made:
        session.cleanup(force=True)


def nat_processes(session: Session, branch: str = "main") -> list[int]:
    record = session.branch(branch).record
    return session.context.platform.network_cgroup(record.incarnation).members()


def everywhere(session: Session) -> list[Branch]:
    """Return the first branch, a forked one and a restored one."""
    session.snapshot("here")
    forked, restored = session.fork("here", ids=["forked", "restored"])
    restored.restore("here")
    return [session.main, forked, restored]


def test_by_default_every_branch_reaches_the_outside(session: Session, outside: Outside) -> None:
    assert session.record.settings.network == Network(mode=NetworkMode.NAT)
    for branch in everywhere(session):
        assert reaches(branch, outside.address, ECHO_PORT) == "reached"
        assert "10.0.2.100/24" in branch.exec("ip -br addr show tap0").output


def test_names_are_resolved_inside(session: Session) -> None:
    assert session.exec("cat /etc/resolv.conf").output.startswith("nameserver 10.0.2.3\n")
    assert session.exec("getent hosts $(hostname); getent hosts localhost").exit_code == 0


def test_packages_can_be_installed_from_their_registries(session: Session) -> None:
    """With the clients and registries that people use, and the mirror and certificates of the host."""
    apt = "apt-get -q update && apt-get install -q -y --no-install-recommends hello && hello"
    ended = session.exec(f"export DEBIAN_FRONTEND=noninteractive; {apt}", timeout_s=300)
    assert ended.output.endswith("Hello, world!\n"), ended.output
    session.exec("export PIP_CONFIG_FILE=/dev/null PIP_CERT=/etc/ssl/certs/ca-certificates.crt")
    pip = "python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check --target /tmp/pip six"
    ended = session.exec(
        f"{pip} && PYTHONPATH=/tmp/pip python3 -c 'import six; print(six.__file__)'", timeout_s=300
    )
    assert ended.output.endswith("/tmp/pip/six.py\n"), ended.output
    assert not os.path.exists("/usr/bin/hello"), "the package must not be installed on the host"


@pytest.mark.quick
def test_three_branches_can_serve_the_same_port_at_once(session: Session) -> None:
    session.exec(
        "mkdir /tmp/www; cd /tmp/www; python3 -m http.server 8000 --bind 10.0.2.100 >/dev/null 2>&1 &"
    )
    wait_until(session, "curl -sf http://10.0.2.100:8000/ >/dev/null")
    branches = everywhere(session)
    for branch in branches:
        branch.exec(f"echo {branch.name} >/tmp/www/name")
    answers = [branch.exec("curl -s http://10.0.2.100:8000/name").output.strip() for branch in branches]
    assert answers == ["main", "forked", "restored"]


@pytest.mark.parametrize("manner", ["idle", "busy"])
def test_connections_to_the_outside_are_reset_only_in_copies(
    session: Session, outside: Outside, manner: str
) -> None:
    session.write_file("/tmp/conversation.py", CONVERSATION.encode())
    session.exec(
        f"python3 /tmp/conversation.py {outside.address} {ECHO_PORT} {manner} >/tmp/log 2>&1 & conversation=$!"
    )
    wait_until(session, "grep -q talking /tmp/log")
    main, *copies = everywhere(session)
    for copy in copies:
        wait_until(copy, "grep -q inside /tmp/log")
        assert copy.exec("tail -n 2 /tmp/log").output == "ConnectionResetError\ninside y\n"
    assert main.exec("kill -0 $conversation && ! grep -q Error /tmp/log").exit_code == 0
    if manner == "busy":
        main.exec("cp /tmp/log /tmp/log.before")
        wait_until(main, "! cmp -s /tmp/log /tmp/log.before")


def test_a_stream_to_the_outside_continues_through_many_snapshots_without_loss(
    session: Session, outside: Outside
) -> None:
    session.write_file("/tmp/upload.py", UPLOAD.encode())
    session.exec(f"python3 /tmp/upload.py {outside.address} {ECHO_PORT} >/tmp/result 2>&1 & upload=$!")
    wait_until(session, "[ -e /tmp/began ]")
    for _ in range(12):
        session.snapshot()
        session.exec("rm /tmp/began")
        wait_until(session, "[ -e /tmp/began ]")
    assert session.exec("touch /tmp/enough; wait $upload; cat /tmp/result", timeout_s=60).output.endswith(
        "whole\n"
    )


@pytest.mark.parametrize("mode", [NetworkMode.NAT, NetworkMode.ISOLATED])
def test_the_loopback_of_the_host_is_never_reached(create: Creates, mode: NetworkMode) -> None:
    session = create(mode)
    with host_loopback_server() as port:
        for branch in everywhere(session):
            for address in ("127.0.0.1", "10.0.2.2", "10.0.2.3", "0.0.0.0"):
                assert reaches(branch, address, port) == "refused"
            if mode is NetworkMode.NAT:
                for address in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.2.2"):
                    assert forges(branch, address, port) == "closed"


def test_the_metadata_service_of_a_cloud_is_not_reached(session: Session) -> None:
    assert reaches(session, "169.254.169.254", 80) == "refused"


def test_other_addresses_of_the_host_are_reached_as_from_another_machine(session: Session) -> None:
    address = host_address()
    assert address is not None, "this host has no address"
    with socket.create_server((address, 0)) as listener:
        code = (
            "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))); print('reached')"
        )
        port = listener.getsockname()[1]
        assert run_python(session, code, address, str(port)) == "reached"


@pytest.fixture
def mount_below_a_shared_one(tmp_path: Path) -> Iterator[Path]:
    """A mount below a shared one, as systemd sets up the whole host and Docker its storage."""
    above, below = tmp_path / "above", tmp_path / "above/below"
    above.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "above", above], check=True)
    try:
        subprocess.run(["mount", "--make-shared", above], check=True)
        below.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "below", below], check=True)
        yield below
    finally:
        subprocess.run(["umount", "--recursive", above], check=True)


def test_mounts_of_the_host_are_not_affected(create: Creates, mount_below_a_shared_one: Path) -> None:
    session = create(NetworkMode.NAT)
    session.restore(session.snapshot("point"))
    assert os.path.ismount(mount_below_a_shared_one)


def test_an_isolated_session_has_only_its_own_loopback(create: Creates, outside: Outside) -> None:
    session = create(NetworkMode.ISOLATED)
    for branch in everywhere(session):
        assert branch.exec("ip -br link").output.split()[0] == "lo"
        assert len(branch.exec("ip -br link").output.splitlines()) == 1
        assert reaches(branch, outside.address, ECHO_PORT) == "refused"
    assert session.context.platform.network_cgroup(session.main.record.incarnation).path.exists() is False


def test_abstract_sockets_of_the_host_cannot_be_reached(session: Session) -> None:
    name = f"waypoint-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert session.exec(f'python3 -c "{code}"').exit_code != 0


def test_every_user_may_ping(session: Session) -> None:
    code = """
import os, socket, struct
os.setgid(65534); os.setuid(65534)
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
ping.settimeout(20)
ping.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"hello", ("10.0.2.2", 0))
print("pong" if ping.recv(100).endswith(b"hello") else "strange")
"""
    for branch in everywhere(session):
        assert run_python(branch, code) == "pong"


def test_the_nat_of_a_branch_ends_with_the_branch(session: Session) -> None:
    (fork,) = session.fork(session.main, ids=["fork"])
    (old,) = nat_processes(session, "fork")
    fork.restore(session.checkpoints()[0])
    (new,) = nat_processes(session, "fork")
    assert not is_alive(old)
    fork.destroy()
    assert not is_alive(new)
    assert is_alive(nat_processes(session)[0])


def is_alive(pid: int) -> bool:
    try:
        return "slirp4netns" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_nat_is_detached_from_its_caller(session: Session) -> None:
    (pid,) = nat_processes(session)
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    # Its mounts ended with its sandbox, so paths may have lost their beginning.
    own = ("/dev/null", "/null", "/dev/net/tun", "/net/tun")
    assert not [link for link in links if link.startswith("/") and link not in own]
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) != os.getsid(0)
    mounts = Path(f"/proc/{pid}/mountinfo").read_text()
    assert os.fspath(session.context.layout.state_dir) not in mounts


def test_a_killed_nat_is_started_again_by_the_next_snapshot(session: Session, outside: Outside) -> None:
    kill_nat(session)
    assert reaches(session, outside.address, ECHO_PORT) == "refused"
    session.snapshot()
    assert reaches(session, outside.address, ECHO_PORT) == "reached"
    with host_loopback_server() as port:
        assert forges(session, "127.0.0.1", port) == "closed"


def test_a_snapshot_killed_at_any_step_leaves_the_network_as_it_was(
    session: Session, outside: Outside
) -> None:
    cut_off = 0
    while killed_at(session.context.layout.state_dir, cut_off, "snapshot", session.id):
        cut_off += 1
        # CRIU or the guard may still be at work and then holds the branch's lock. No command runs meanwhile.
        with locked(session.context.branch_lock(session.id, "main"), what="main", timeout_s=60):
            frozen = (
                session.context.platform.network_cgroup(session.main.record.incarnation).path
                / "cgroup.freeze"
            )
            assert frozen.read_text() == "0\n"
        recover_abandoned(session.context)
        assert reaches(session, outside.address, ECHO_PORT) == "reached"
    assert cut_off >= 5, "some kills must hit CRIU at work"


def test_without_a_working_nat_no_session_is_made(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slirp, "SLIRP", "false")
    with pytest.raises(EngineError, match="no network"):
        waypoint.create(workspace, network=Network(mode=NetworkMode.NAT))
    assert waypoint.sessions() == []


def test_a_session_may_share_the_network_of_the_host(create: Creates) -> None:
    session = create(NetworkMode.HOST)
    with host_loopback_server() as port:
        code = (
            "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('reached')"
        )
        for branch in everywhere(session):
            assert run_python(branch, code, str(port)) == "reached"


def test_on_the_hosts_network_a_taken_port_is_reported_and_the_branch_keeps_running(
    create: Creates,
) -> None:
    session = create(NetworkMode.HOST)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    session.exec(f"python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1 & server=$!")
    wait_until(session, f"curl -sf http://127.0.0.1:{port}/ >/dev/null")
    session.snapshot("serving")
    with pytest.raises(RestoreFailed, match=f"port {port} of the host"):
        session.restore("serving")
    assert session.exec(f"curl -sf http://127.0.0.1:{port}/ >/dev/null").exit_code == 0
    session.exec("kill $server; wait")
    session.restore("serving")
    assert session.exec(f"curl -sf http://127.0.0.1:{port}/ >/dev/null").exit_code == 0


@pytest.mark.alone  # other tests add devices and routes to the host
def test_sessions_leave_the_network_of_the_host_unchanged(create: Creates) -> None:
    """A session leaves no trace in its firewall, routes, devices or settings."""

    def facts() -> str:
        listings = ["ip -br link", "ip route", "ip rule", "nft list ruleset", "sysctl net.ipv4.ip_forward"]
        output = b"".join(
            subprocess.run(line.split(), capture_output=True, check=True).stdout for line in listings
        )
        return hashlib.sha256(output).hexdigest()

    before = facts()
    session = create(NetworkMode.NAT)
    session.fork(session.main)
    assert facts() == before
