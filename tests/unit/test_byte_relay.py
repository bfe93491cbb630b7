"""The relay passes all bytes on in order, and also shutdowns of one direction, closes and resets."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from waypoint.kernel.network.byte_relay import relay

TIMEOUT_S = 30.0


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=TIMEOUT_S)
        far, _ = listener.accept()
        far.settimeout(TIMEOUT_S)
        return near, far


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two callers with a relay between them."""
    (caller, one), (server, other) = tcp_pair(), tcp_pair()
    carrying = threading.Thread(target=relay, args=(one, other))
    carrying.start()
    with caller, server:
        yield caller, server
    carrying.join(TIMEOUT_S)
    assert not carrying.is_alive(), "the relay must end with its connections"


def read_all(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(1 << 16), b""))


def test_all_bytes_arrive_in_both_directions(ends: tuple[socket.socket, socket.socket]) -> None:
    heard: dict[int, bytes] = {}
    said = [os.urandom(4 << 20), os.urandom(3 << 20)]

    def speak(number: int) -> None:
        ends[number].sendall(said[number])
        ends[number].shutdown(socket.SHUT_WR)

    def listen(number: int) -> None:
        heard[number] = read_all(ends[number])

    threads = [threading.Thread(target=act, args=(n,)) for act in (speak, listen) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [heard[1], heard[0]] == said


def test_after_a_shutdown_of_one_direction_the_other_still_works(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    caller, server = ends
    caller.sendall(b"question")
    caller.shutdown(socket.SHUT_WR)
    assert read_all(server) == b"question"
    server.sendall(b"answer")
    server.close()
    assert read_all(caller) == b"answer"


@pytest.mark.parametrize("has_ended_its_direction", [False, True])
def test_a_reset_of_one_end_resets_the_other(
    ends: tuple[socket.socket, socket.socket], has_ended_its_direction: bool
) -> None:
    caller, server = ends
    if has_ended_its_direction:
        caller.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    caller.close()
    with pytest.raises(ConnectionError):
        while True:
            server.sendall(b"x")
            server.recv(1)


def test_nothing_is_passed_on_while_the_relay_is_on_hold() -> None:
    (caller, one), (server, other) = tcp_pair(), tcp_pair()
    opened = threading.Event()

    @contextmanager
    def holding() -> Iterator[None]:
        opened.wait(TIMEOUT_S)
        yield

    carrying = threading.Thread(target=relay, args=(one, other), kwargs={"holding": holding})
    carrying.start()
    with caller, server:
        caller.sendall(b"early")
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.recv(1)
        opened.set()
        server.settimeout(TIMEOUT_S)
        assert server.recv(100) == b"early"
    carrying.join(TIMEOUT_S)
