"""Ports of a branch that are forwarded from the loopback of the host."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import DEADLINE_S, wait_until
from waypoint import Branch, Session, Waypoint
from waypoint.engine.branch_network import open_network
from waypoint.errors import AlreadyExists, Busy, NotFound, UsageError
from waypoint.kernel.network.namespace import within_network
from waypoint.model import Network, NetworkMode

PORT = 8000
# Echoes in upper case, also after the caller's last byte; `name` is answered with the content of a file.
SERVER = """
import socket, sys, threading
def answer(connection):
    with connection:
        while data := connection.recv(1 << 16):
            if data == b"name":
                data = open("/tmp/name", "rb").read()
            connection.sendall(data.upper())
        connection.sendall(b"END")
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family, backlog=256)
open(f"/tmp/serving-{sys.argv[2]}", "w").close()
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(params=[NetworkMode.ISOLATED, NetworkMode.NAT])
def either(
    request: pytest.FixtureRequest, waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None
) -> Iterator[Session]:
    session = waypoint.create(workspace, network=Network(mode=request.param))
    yield session
    if any(existing.id == session.id for existing in waypoint.sessions()):
        session.cleanup(force=True)


def serve(branch: Branch | Session, address: str = "127.0.0.1", port: int = PORT) -> None:
    branch.write_file("/tmp/server.py", SERVER.encode())
    branch.write_file("/tmp/name", b"main")
    branch.exec(f"python3 /tmp/server.py {address} {port} >/tmp/server.log 2>&1 &")
    wait_until(branch, f"[ -e /tmp/serving-{port} ]")


def call(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


def ask(port: int, question: bytes = b"name") -> bytes:
    with call(port) as connection:
        connection.sendall(question)
        return connection.recv(100)


def is_refused(port: int) -> bool:
    try:
        call(port).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.quick
def test_each_branch_is_reached_at_its_port_also_after_a_restore(either: Session) -> None:
    serve(either)
    either.snapshot("serving")
    (fork,) = either.fork("serving", ids=["fork"])
    ways = {branch.name: branch.expose(PORT).host_port for branch in (either.main, fork)}
    fork.write_file("/tmp/name", b"fork")
    assert {name: ask(port) for name, port in ways.items()} == {"main": b"MAIN", "fork": b"FORK"}
    either.main.write_file("/tmp/name", b"changed")
    assert ask(ways["main"]) == b"CHANGED"
    either.restore("serving")
    assert {name: ask(port) for name, port in ways.items()} == {"main": b"MAIN", "fork": b"FORK"}
    assert {(port.branch, port.port, port.host_port, port.is_listening) for port in either.ports()} == {
        (name, PORT, host_port, True) for name, host_port in ways.items()
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "10.0.2.100"])
def test_a_server_is_reached_whatever_address_it_listens_on(session: Session, address: str) -> None:
    serve(session, address)
    assert ask(session.main.expose(PORT).host_port) == b"MAIN"


def test_a_server_is_reached_without_ipv6_too(session: Session) -> None:
    # the setting belongs to the network namespace of the writing thread
    switch = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    with open_network(session.context.platform, session.main.record) as network:
        within_network(network, lambda: switch.write_text("1"))
    assert (
        "Cannot assign"
        in session.exec("python3 -c 'import socket; socket.create_connection((\"::1\", 9))'").output
    )
    serve(session, "10.0.2.100")
    assert ask(session.main.expose(PORT).host_port) == b"MAIN"


def test_a_caller_may_shut_down_its_direction_and_still_be_answered(session: Session) -> None:
    serve(session)
    with call(session.main.expose(PORT).host_port) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(100), b""))
    assert answer == b"LASTEND"


def test_all_bytes_arrive_at_a_slow_reader_and_across_snapshots(session: Session) -> None:
    serve(session)
    said = os.urandom(1 << 20).hex().encode() * 8
    heard = bytearray()
    with call(session.main.expose(PORT).host_port) as connection:

        def say() -> None:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=say)
        writer.start()
        for _ in range(4):
            heard += connection.recv(1 << 16)
            session.snapshot()
        while data := connection.recv(1 << 16):
            heard += data
        writer.join()
    assert bytes(heard) == said.upper() + b"END"


def test_a_connection_continues_in_the_saved_branch_and_is_reset_in_a_copy(session: Session) -> None:
    serve(session)
    follow = """
import socket
listener = socket.create_server(("127.0.0.1", 8001))
open("/tmp/listening", "w").close()
connection, _ = listener.accept()
open("/tmp/accepted", "w").close()
try:
    print("heard", connection.recv(100).decode(), flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""
    session.write_file("/tmp/follow.py", follow.encode())
    session.exec("python3 /tmp/follow.py >/tmp/follow.log 2>&1 &")
    wait_until(session, "[ -e /tmp/listening ]")
    with call(session.main.expose(8001).host_port) as connection:
        wait_until(session, "[ -e /tmp/accepted ]")
        (copy,) = session.fork(session.main, ids=["copy"])
        wait_until(copy, "grep -q ConnectionResetError /tmp/follow.log")
        connection.sendall(b"still here")
        wait_until(session, "grep -q 'heard still here' /tmp/follow.log")


def test_callers_are_reset_if_nothing_listens_in_the_branch(session: Session) -> None:
    exposed = session.main.expose(PORT)
    assert not exposed.is_listening
    with pytest.raises(ConnectionResetError), call(exposed.host_port) as connection:
        connection.recv(1)
    serve(session)
    assert ask(exposed.host_port) == b"MAIN"


def test_two_hundred_callers_at_once_are_served(session: Session) -> None:
    serve(session)
    port = session.main.expose(PORT).host_port
    callers = [call(port) for _ in range(200)]
    try:
        for caller in callers:
            caller.sendall(b"name")
        assert [caller.recv(100) for caller in callers] == [b"MAIN"] * 200
    finally:
        for caller in callers:
            caller.close()


def test_unexpose_closes_the_port_and_frees_it(session: Session) -> None:
    serve(session)
    port = session.main.expose(PORT).host_port
    with call(port) as connection:
        connection.sendall(b"name")
        assert connection.recv(100) == b"MAIN"
        session.main.unexpose(PORT)
        with pytest.raises(NotFound):
            session.main.unexpose(PORT)
        assert connection.recv(100) in (b"", b"END")
    assert is_refused(port)
    assert session.ports() == []
    assert session.main.expose(PORT, host_port=port).host_port == port


def test_a_port_is_closed_with_its_branch_or_session(session: Session) -> None:
    serve(session)
    (fork,) = session.fork(session.main, ids=["fork"])
    ports = [branch.expose(PORT).host_port for branch in (session.main, fork)]
    fork.destroy()
    assert [is_refused(port) for port in ports] == [False, True]
    session.cleanup()
    assert [is_refused(port) for port in ports] == [True, True]


def forwarders(session: Session) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_forwarder(entry, session.id)
    ]


def _is_forwarder(process: Path, session_id: str) -> bool:
    try:
        words = (process / "cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "waypoint.session.background.forwarder" in words and session_id in words


@pytest.mark.parametrize("how", ["ports", "restore", "another"])
def test_a_killed_forwarder_is_started_again(session: Session, how: str) -> None:
    serve(session)
    session.snapshot("serving")
    port = session.main.expose(PORT).host_port
    (pid,) = forwarders(session)
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):
        os.sched_yield()
    if how == "ports":
        session.ports()
    elif how == "restore":
        session.restore("serving")
    else:
        session.main.expose(PORT + 1)
    deadline = time.monotonic() + DEADLINE_S
    while is_refused(port):
        assert time.monotonic() < deadline
    assert ask(port) == b"MAIN"
    assert len(forwarders(session)) == 1


def test_a_forwarder_is_detached_from_its_caller(session: Session) -> None:
    session.main.expose(PORT)
    (pid,) = forwarders(session)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) == pid
    links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in "012"}
    assert links == {"/dev/null"}


def test_wrong_uses_of_ports_are_refused(session: Session, waypoint: Waypoint, workspace: Path) -> None:
    session.main.expose(PORT)
    with pytest.raises(AlreadyExists, match=str(PORT)):
        session.main.expose(PORT)
    with pytest.raises(UsageError, match="70000"):
        session.main.expose(70000)
    with pytest.raises(NotFound, match="nobody"):
        Branch(session, "nobody").expose(PORT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Busy, match=f"port {port} of the host"):
            session.main.expose(9, host_port=port)
        assert session.main.expose(port).host_port != port, "the same number may be used only if it is free"
    with pytest.raises(Busy, match="another branch"):
        session.main.expose(9, host_port=session.ports()[0].host_port)
    assert {exposed.port for exposed in session.ports()} == {PORT, port}
    shared = waypoint.create(workspace, network=Network(mode=NetworkMode.HOST))
    try:
        with pytest.raises(UsageError, match="shares the host's network"):
            shared.main.expose(PORT)
    finally:
        shared.cleanup(force=True)
