"""TCP connections inside a session continue in every copy, in whatever state they were; or the snapshot is refused."""

import re

import pytest

from support.waiting import DEADLINE_S, wait_until
from support.workload import assert_workload_survives, install_workloads, start_workload
from waypoint import Session
from waypoint.errors import DumpFailed
from workloads.connections import WORKLOADS

CHECKPOINTS, AT_ONCE = 100, 10


@pytest.mark.parametrize("workload", [workload.__name__ for workload in WORKLOADS])
def test_a_connection_continues(session: Session, workload: str) -> None:
    assert_workload_survives(session, "connections", workload)


def test_connections_in_all_states_continue_in_each_of_a_hundred_checkpoints(session: Session) -> None:
    """Each is forked, and each is restored: the next one is taken of a restored branch."""
    start_workload(session, "connections", "all_at_once")
    for _ in range(CHECKPOINTS // AT_ONCE):
        forks = []
        for _ in range(AT_ONCE):
            saved = session.snapshot()
            session.restore(saved)
            forks += session.fork(saved)
            forks[-1].exec("kill -USR1 %1")  # it checks itself while we go on
        for fork in forks:
            ended = fork.exec("wait %1", timeout_s=DEADLINE_S)
            assert ended.exit_code == 0, ended.output
            fork.destroy()


IMPORTS = "import os, socket, time; from workloads.connections import _fill, _pair;"
UNDELIVERED = {
    "a client that has sent, which a server has not accepted": (
        f"{IMPORTS} s = socket.create_server(('127.0.0.1', 7070));"
        "c = socket.create_connection(('127.0.0.1', 7070)); c.sendall(b'request')",
        r"process \d+ \(python3\) has not accepted a client that has sent to 127.0.0.1:7070",
    ),
    "a client of a unix socket that has sent": (
        f"{IMPORTS} s = socket.socket(socket.AF_UNIX); s.bind('/tmp/server'); s.listen();"
        "c = socket.socket(socket.AF_UNIX); c.connect('/tmp/server'); c.sendall(b'request')",
        r"process \d+ \(python3\) has not accepted a client that has sent to /tmp/server",
    ),
    "a closed connection with more than its peer can take": (
        f"{IMPORTS} one, other = _pair(); _fill(one); one.close()",
        r"a connection from 127.0.0.1:\d+ to 127.0.0.1:\d+ was closed, and not all that was sent has arrived",
    ),
}


@pytest.mark.parametrize(("program", "reason"), UNDELIVERED.values(), ids=UNDELIVERED)
def test_a_snapshot_is_refused_for(session: Session, program: str, reason: str) -> None:
    install_workloads(session)
    session.exec(f"python3 -c \"{program}; open('/tmp/ready', 'w'); time.sleep(1000)\" &")
    wait_until(session, "[ -e /tmp/ready ]")
    for _ in range(2):
        with pytest.raises(DumpFailed) as refused:
            session.snapshot()
        assert re.search(reason, refused.value.reason)
        assert "CRIU" not in str(refused.value)
        assert "save again" in refused.value.hint
        assert session.exec("jobs -r | wc -l").output == "1\n"
    assert session.checkpoints() == []
    session.exec("kill %1; wait %1")
    session.restore(session.snapshot())


def test_a_snapshot_waits_for_a_server_that_is_about_to_accept(session: Session) -> None:
    """Clients that connect, send and leave, one after the other, without a pause."""
    session.exec(f"cat >/tmp/busy.py <<'END'\n{BUSY_SERVER}END")
    session.exec("python3 /tmp/busy.py >/tmp/busy.log 2>&1 &")
    wait_until(session, "[ -s /tmp/answers ]")
    for _ in range(20):
        session.restore(session.snapshot())
    answers = int(session.exec("wc -l </tmp/answers").output)
    wait_until(session, f"[ $(wc -l </tmp/answers) -gt {answers + 100} ]")
    assert session.exec("cat /tmp/busy.log").output == ""


BUSY_SERVER = """\
import os, socket
server = socket.create_server(("127.0.0.1", 7071))
if os.fork() == 0:
    while True:
        connection = server.accept()[0]
        connection.sendall(connection.recv(100))
        connection.close()
answers = open("/tmp/answers", "w", buffering=1)
number = 0
while True:
    with socket.create_connection(("127.0.0.1", 7071)) as client:
        number += 1
        client.sendall(str(number).encode())
        assert client.recv(100) == str(number).encode()
        answers.write("answer\\n")
"""
