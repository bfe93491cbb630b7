"""Unix connections: what a server asks of its client stays true, and nobody becomes root by it."""

import os
import socket
import struct
from collections.abc import Iterator

from workloads.pausing import run

USER, GROUP, OTHER_USER, OTHER_GROUP = 1234, 2345, 3456, 4567


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _client(path: str, uid: int, gid: int, kind: int) -> int:
    """A child that connects, and answers what it is sent."""
    child = os.fork()
    if child == 0:
        os.closerange(3, 256)  # the server's
        _become(uid, gid)
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.connect(path)
            connection.sendall(b"hello")
            while data := connection.recv(100):
                connection.sendall(data.upper())
        os._exit(0)
    return child


def _server(path: str, kind: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(path)
    if not path.startswith("\0"):
        os.chmod(path, 0o777)
    listener.listen()
    return listener


def _clients_of(path: str, kind: int) -> Iterator[None]:
    with _server(path, kind) as listener:
        expected = []
        for uid, gid in ((USER, GROUP), (0, 0), (OTHER_USER, OTHER_GROUP), (USER, GROUP)):
            child = _client(path, uid, gid, kind)
            connection, _ = listener.accept()
            assert _peer(connection) == (child, uid, gid)
            expected.append((connection, (child, uid, gid)))
        yield
        for connection, peer in expected:
            assert _peer(connection) == peer
            assert connection.recv(100) == b"hello"
            connection.sendall(b"answer")
            assert connection.recv(100) == b"ANSWER"
            connection.close()
            assert os.waitpid(peer[0], 0)[1] == 0
        child = _client(path, USER, GROUP, kind)  # the listener goes on
        assert _peer(listener.accept()[0]) == (child, USER, GROUP)
        os.kill(child, 9)


def stream() -> Iterator[None]:
    yield from _clients_of("/tmp/server", socket.SOCK_STREAM)


def packets() -> Iterator[None]:
    yield from _clients_of("/tmp/server", socket.SOCK_SEQPACKET)


def abstract() -> Iterator[None]:
    yield from _clients_of("\0server", socket.SOCK_STREAM)


def pair_of_another_user() -> Iterator[None]:
    """A process that is not root has both ends, and its child one of them."""
    if os.fork() == 0:
        _become(USER, GROUP)
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            while data := theirs.recv(100):
                theirs.sendall(data.upper())
            os._exit(0)
        theirs.close()
        while not os.path.exists("/tmp/check"):
            pass
        _, uid, gid = _peer(ours)
        ours.sendall(b"answer")
        os._exit(0 if (uid, gid) == (USER, GROUP) and ours.recv(100) == b"ANSWER" else 1)
    yield
    os.close(os.open("/tmp/check", os.O_CREAT))
    assert os.wait()[1] == 0


WORKLOADS = (stream, packets, abstract, pair_of_another_user)

if __name__ == "__main__":
    run(*WORKLOADS)
