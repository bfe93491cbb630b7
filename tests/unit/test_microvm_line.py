"""The host's end of the connection into a microVM, against a peer that sends what a machine could send."""

import threading
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from statefork.backends.microvm.line import Line
from waypoint.errors import Broken

TIMEOUT_S = 30.0


class Machine:
    """A peer that answers a caller's greeting with what ``make`` returns for its nonce, then records what it gets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = Socket(AF_UNIX, SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self.heard = b""
        self._threads: list[threading.Thread] = []
        self._lines: list[Line] = []

    def answer(self, make: Callable[[bytes], bytes]) -> Line:
        def serve() -> None:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
            peer = Socket(fileno=fd)
            self.heard = peer.recv(4096)
            nonce = self.heard[2 : self.heard.index(b"\n")]
            answer = make(nonce)
            with closing(peer), suppress(OSError):  # the caller may have closed the connection
                # in pieces, so that every word and escape is split somewhere
                for at in range(0, len(answer), 3):
                    peer.sendall(answer[at : at + 3])
                while data := peer.recv(4096):
                    self.heard += data

        thread = threading.Thread(target=serve)
        thread.start()
        self._threads.append(thread)
        line = Line()
        line.connect(str(self.path))
        self._lines.append(line)
        return line

    def end(self) -> None:
        for line in self._lines:
            line.close()
        for thread in self._threads:
            thread.join()
        self._listener.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "port")
    yield made
    made.end()


def read_all(line: Line) -> bytes:
    data = b""
    while piece := line.recv(4096):
        data += piece
    return data


def test_a_caller_gets_only_what_follows_its_own_nonce(machine: Machine) -> None:
    stale = b"old data \xdb\xc0Oother\nmore\xc0Eother\n\xc0half\xc0R 1\n"
    line = machine.answer(
        lambda nonce: stale + b"\xc0O" + nonce + b"\nmine \xdb\xdc\xdb\xdd\xdd\xc0E" + nonce + b"\nrest"
    )
    line.open(TIMEOUT_S, renew=False)
    assert read_all(line) == b"mine \xc0\xdb\xdd"


def test_flag_bytes_in_sent_data_are_escaped(machine: Machine) -> None:
    line = machine.answer(lambda nonce: b"\xc0O" + nonce + b"\n\xc0E" + nonce + b"\n")
    line.open(TIMEOUT_S, renew=False)
    line.sendall(b"\xc0\xdb\xdc")
    assert read_all(line) == b""  # the peer begins to read after it has sent everything
    machine.end()
    assert machine.heard.count(b"\xc0") == 1
    assert machine.heard.endswith(b"\n\xdb\xdc\xdb\xdd\xdc")


def test_a_machine_that_cannot_be_renewed_is_not_used(machine: Machine) -> None:
    line = machine.answer(lambda nonce: b"\xc0R" + nonce + b" 1\n\xc0O" + nonce + b"\n")
    with pytest.raises(Broken, match="error 1"):
        line.open(TIMEOUT_S, renew=True)


def test_a_caller_waits_until_the_machine_is_renewed(machine: Machine) -> None:
    line = machine.answer(
        lambda nonce: b"\xc0O" + nonce + b"\nearly\xc0R" + nonce + b" 0\nlate\xc0E" + nonce + b"\n"
    )
    line.open(TIMEOUT_S, renew=True)
    assert read_all(line) == b"earlylate"


def test_an_init_that_does_not_listen_is_reported(machine: Machine) -> None:
    line = machine.answer(lambda nonce: b"\xc0E" + nonce + b"\n")
    with pytest.raises(Broken, match="does not listen"):
        line.open(TIMEOUT_S, renew=False)


def test_an_endless_word_is_given_up(machine: Machine) -> None:
    line = machine.answer(lambda nonce: b"\xc0" + b"x" * 200_000)
    with pytest.raises(Broken, match="protocol of its line"):
        line.open(TIMEOUT_S, renew=False)


def test_waiting_for_a_silent_machine_ends_at_the_timeout(machine: Machine) -> None:
    line = machine.answer(lambda _: b"")
    with pytest.raises(TimeoutError):
        line.open(0.2, renew=False)
