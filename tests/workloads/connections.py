"""TCP connections in every state: in each copy all that was sent arrives, once, in order, and then the end."""

import array
import errno
import fcntl
import os
import select
import socket
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from workloads.pausing import run

CHUNK = 5000
AWAY_S = 20  # longer than the kernel waits before it sends again what was dropped


def _content(start: int, length: int) -> bytes:
    """Bytes that tell their place in a stream."""
    return b"".join(number.to_bytes(4, "big") for number in range(start // 4, (start + length) // 4))


def _receive(connection: socket.socket, length: int, start: int = 0) -> None:
    """Receive so much, and compare it."""
    connection.settimeout(AWAY_S)
    received = bytearray()
    while len(received) < length:
        part = connection.recv(length - len(received))
        assert part, f"the stream ended after {len(received)} of {length} bytes"
        received += part
    assert received == _content(start, length)


def _assert_at_end(connection: socket.socket) -> None:
    connection.settimeout(AWAY_S)
    assert connection.recv(1) == b""


def _pair(family: int = socket.AF_INET) -> tuple[socket.socket, socket.socket]:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((address, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        return client, listener.accept()[0]


def _fill(connection: socket.socket) -> int:
    """Send until nothing more fits; return how much was sent."""
    connection.setblocking(False)
    sent = 0
    while True:
        try:
            sent += connection.send(_content(sent - sent % 4, CHUNK + 4)[sent % 4 :][:CHUNK])
        except BlockingIOError:
            writable = select.select([], [connection], [], 0.3)[1]
            if not writable:
                connection.setblocking(True)
                return sent


def _blocked_sender(family: int) -> Iterator[None]:
    """A child is blocked in send(), because its peer does not read."""
    sender, receiver = _pair(family)
    total = 12 << 20
    child = os.fork()
    if child == 0:
        receiver.close()
        for start in range(0, total, 1 << 20):
            sender.sendall(_content(start, 1 << 20))
        sender.close()
        os._exit(0)
    sender.close()
    before = -1
    while before != (now := _queued(receiver)):  # until nothing moves any more
        before = now
        time.sleep(0.2)
    yield
    _receive(receiver, total)
    _assert_at_end(receiver)
    assert os.waitpid(child, 0)[1] == 0


def _queued(connection: socket.socket) -> int:
    size = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, size)
    return size[0]


def blocked_sender() -> Iterator[None]:
    yield from _blocked_sender(socket.AF_INET)


def blocked_sender_on_ipv6() -> Iterator[None]:
    yield from _blocked_sender(socket.AF_INET6)


def full_in_both_directions() -> Iterator[None]:
    one, other = _pair()
    sizes = _fill(one), _fill(other)
    yield
    _receive(other, sizes[0])
    _receive(one, sizes[1])
    one.sendall(_content(0, CHUNK))
    _receive(other, CHUNK)


def half_closed() -> Iterator[None]:
    """One side has sent all and said so, with the data unread; the other answers later."""
    one, other = _pair()
    one.sendall(_content(0, CHUNK))
    one.shutdown(socket.SHUT_WR)
    yield
    _receive(other, CHUNK)
    _assert_at_end(other)
    other.sendall(_content(CHUNK, CHUNK))
    other.shutdown(socket.SHUT_WR)
    _receive(one, CHUNK, CHUNK)
    _assert_at_end(one)


def half_closed_with_a_full_connection() -> Iterator[None]:
    one, other = _pair()
    sent = _fill(one)
    one.shutdown(socket.SHUT_WR)
    yield
    _receive(other, sent)
    _assert_at_end(other)
    other.sendall(_content(0, CHUNK))
    _receive(one, CHUNK)


def closed_by_both() -> Iterator[None]:
    one, other = _pair()
    one.sendall(_content(0, CHUNK))
    one.shutdown(socket.SHUT_WR)
    other.sendall(_content(0, CHUNK))
    other.shutdown(socket.SHUT_WR)
    yield
    _receive(one, CHUNK)
    _receive(other, CHUNK)
    _assert_at_end(one)
    _assert_at_end(other)


def closed_by_one_with_data_unread() -> Iterator[None]:
    one, other = _pair()
    one.sendall(_content(0, CHUNK))
    one.close()
    yield
    _receive(other, CHUNK)
    _assert_at_end(other)


def connecting() -> Iterator[None]:
    """The queue of the listener is full with the first: the others connect when it accepts. All speak first."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        clients = [socket.socket() for _ in range(5)]
        for client in clients:
            client.setblocking(False)
            assert client.connect_ex(listener.getsockname()) == errno.EINPROGRESS
        yield
        listener.settimeout(AWAY_S)
        with ThreadPoolExecutor() as threads:
            conversations = [threads.submit(_converse, client) for client in clients]
            for _ in clients:
                connection, _ = listener.accept()
                _receive(connection, CHUNK)
                connection.sendall(_content(CHUNK, CHUNK))
            for conversation in conversations:
                conversation.result()


def _converse(client: socket.socket) -> None:
    client.settimeout(AWAY_S)
    assert select.select([], [client], [], AWAY_S)[1]
    client.sendall(_content(0, CHUNK))
    _receive(client, CHUNK, CHUNK)


def not_accepted() -> Iterator[None]:
    """They are connected, and wait for the server, which speaks first."""
    with socket.create_server(("127.0.0.1", 0), backlog=10) as listener:
        clients = {}
        for _ in range(4):
            client = socket.create_connection(listener.getsockname())
            clients[client.getsockname()] = client
        yield
        listener.settimeout(AWAY_S)
        while clients:
            connection, name = listener.accept()
            client = clients.pop(name)
            connection.sendall(_content(0, CHUNK))
            _receive(client, CHUNK)
            client.sendall(_content(0, CHUNK))
            _receive(connection, CHUNK)


WORKLOADS = (
    blocked_sender,
    blocked_sender_on_ipv6,
    full_in_both_directions,
    half_closed,
    half_closed_with_a_full_connection,
    closed_by_both,
    closed_by_one_with_data_unread,
    connecting,
    not_accepted,
)


def all_at_once() -> Iterator[None]:
    begun = [workload() for workload in WORKLOADS]
    for workload in begun:
        next(workload)
    yield
    for workload in begun:
        assert next(workload, "ended") == "ended"


if __name__ == "__main__":
    run(*WORKLOADS, all_at_once)
