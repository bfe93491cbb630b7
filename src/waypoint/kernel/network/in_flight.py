"""What is under way between the sockets of a network namespace while no process has it: a checkpoint would not have it.

A client that its server has not accepted yet may have sent to a socket that nobody can read from. A connection that was
closed may still have to deliver what was sent.
"""

import ipaddress
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.network.namespace import within_network

__all__ = ["Endpoint", "InFlight", "NetworkView", "Undelivered"]

DELIVERY_WAIT_S = 1.0
DELIVERY_IDLE_S = 0.05  # if nothing has changed for so long, nobody is about to accept
DELIVERY_POLL_S = 0.005  # nothing announces that a connection was accepted

_ESTABLISHED, _FIN_WAIT1, _CLOSE_WAIT, _LAST_ACK, _LISTEN, _CLOSING = 1, 4, 8, 9, 10, 11
_STILL_SENDING = (_FIN_WAIT1, _LAST_ACK, _CLOSING)
_STATES = sum(1 << state for state in (_ESTABLISHED, _CLOSE_WAIT, _LISTEN, *_STILL_SENDING))
_UNIX_CONNECTED, _UNIX_LISTENING = (
    "02",
    "00010000",
)  # a state, which with no inode means not yet accepted; a flag
_MAPPED = bytes(10) + b"\xff\xff"  # how the IPv6 form of an IPv4 address begins
# Of the kernel's sock_diag interface: a request, and an answer, of which the rest is not needed.
_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_HEADER, _REQUEST = struct.Struct("=IHHII"), struct.Struct("=BBBBI48x")
_ANSWER = struct.Struct("=BBBx2s2s16s16s12x4xII4xI")
_ANSWER_BYTES_MAX = 1 << 17


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, IPv4 also where it is written as IPv6, and a port."""

    host: bytes
    port: int

    def __str__(self) -> str:
        ip = ipaddress.ip_address(self.host)
        return f"[{ip}]:{self.port}" if ip.version == 6 else f"{ip}:{self.port}"

    @classmethod
    def parse(cls, host: bytes, port: int) -> "Endpoint":
        return cls(host.removeprefix(_MAPPED) if len(host) == 16 else host, port)

    def socket_address(self, family: int) -> bytes:
        """A struct sockaddr of that family."""
        port = self.port.to_bytes(2, "big")
        if family == socket.AF_INET:
            return struct.pack("=H2s4s8x", family, port, self.host)
        host = self.host if len(self.host) == 16 else _MAPPED + self.host
        return struct.pack("=H2sI16sI", family, port, 0, host, 0)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """``listener`` is the inode of the socket that has not accepted a client; 0 if it is about something else."""

    what: str
    listener: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """What is under way. ``waiting`` have not been accepted and have sent nothing: clients, each with its server."""

    waiting: frozenset[tuple[Endpoint, Endpoint]] = frozenset()
    undelivered: frozenset[Undelivered] = frozenset()
    of_unix: frozenset[Undelivered] = frozenset()
    """Clients of unix sockets; the kernel does not say whether they have sent anything."""

    def __bool__(self) -> bool:
        return bool(self.waiting or self.undelivered or self.of_unix)

    def __sub__(self, earlier: "InFlight") -> "InFlight":
        return InFlight(
            waiting=self.waiting - earlier.waiting,
            undelivered=self.undelivered - earlier.undelivered,
            of_unix=self.of_unix - earlier.of_unix,
        )


@dataclass(frozen=True, slots=True)
class _Tcp:
    local: Endpoint
    remote: Endpoint
    state: int
    to_send: int
    to_read: int
    inode: int


class NetworkView:
    """A context manager: looks into the network namespace of a process, fast enough for the time of a pause.

    /proc/net/tcp would take milliseconds, because the kernel goes through the connections of the whole host for it.
    """

    def __init__(self, process: int) -> None:
        self._process = process

    def __enter__(self) -> "NetworkView":
        self._netlink: socket.socket | None = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._netlink is not None:
            self._netlink.close()

    def await_delivery(self) -> InFlight:
        """Give servers that are at work the time to accept, and closed connections to deliver; return what is left."""
        began = changed = time.monotonic()
        left = self.find_in_flight()
        while left and time.monotonic() < min(began + DELIVERY_WAIT_S, changed + DELIVERY_IDLE_S):
            time.sleep(DELIVERY_POLL_S)
            now = self.find_in_flight()
            if now != left:
                left, changed = now, time.monotonic()
        return left

    def find_in_flight(self) -> InFlight:
        """What is under way between sockets that are both in the namespace."""
        entries = [
            entry
            for family, statistics in ((socket.AF_INET, "sockstat"), (socket.AF_INET6, "sockstat6"))
            if self._has_tcp(statistics)
            for entry in self._tcp(family)
        ]
        listeners = {entry.local.port: entry.inode for entry in entries if entry.state == _LISTEN}
        ends = {(entry.local, entry.remote) for entry in entries}
        waiting, undelivered = set(), set()
        for entry in entries:
            if entry.inode or (entry.remote, entry.local) not in ends:
                continue
            end = int(entry.state == _CLOSE_WAIT)  # counts as a byte
            if entry.state in (_ESTABLISHED, _CLOSE_WAIT) and entry.to_read > end:
                what = f"a client that has sent to {entry.local}"
                undelivered.add(Undelivered(what, listeners.get(entry.local.port, 0)))
            elif entry.state == _ESTABLISHED:
                waiting.add((entry.remote, entry.local))
            elif entry.state in _STILL_SENDING and entry.to_send > 1:
                route = f"from {entry.local} to {entry.remote}"
                what = f"a connection {route} was closed, and not all that was sent has arrived"
                undelivered.add(Undelivered(what))
        return InFlight(
            waiting=frozenset(waiting),
            undelivered=frozenset(undelivered),
            of_unix=frozenset(_unix(self._process)),
        )

    def _has_tcp(self, statistics: str) -> bool:
        try:
            text = Path(f"/proc/{self._process}/net/{statistics}").read_text()
        except OSError:  # it has ended, or the kernel knows no IPv6
            return False
        return re.search(r"^TCP6?: inuse [1-9]", text, re.MULTILINE) is not None

    def _connected(self) -> socket.socket:
        if self._netlink is None:
            namespace = os.open(f"/proc/{self._process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._netlink = within_network(
                    namespace, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
                )
            finally:
                os.close(namespace)
        return self._netlink

    def _tcp(self, family: int) -> Iterator[_Tcp]:
        netlink = self._connected()
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _STATES)
        netlink.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        host_bytes = 4 if family == socket.AF_INET else 16
        while True:
            data, at = netlink.recv(_ANSWER_BYTES_MAX), 0
            while at < len(data):
                size, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel does not list its connections")
                _, state, _, port, peer_port, host, peer, to_read, to_send, inode = _ANSWER.unpack_from(
                    data, at + _HEADER.size
                )
                yield _Tcp(
                    Endpoint.parse(host[:host_bytes], int.from_bytes(port, "big")),
                    Endpoint.parse(peer[:host_bytes], int.from_bytes(peer_port, "big")),
                    *(state, to_send, to_read, inode),
                )
                at += size + 3 & ~3


def _unix(process: int) -> Iterator[Undelivered]:
    try:
        table = Path(f"/proc/{process}/net/unix").read_text(errors="replace")
    except OSError:  # it has ended
        return
    lines = [line.split(maxsplit=7) for line in table.splitlines()[1:]]
    listeners = {line[7]: int(line[6]) for line in lines if line[3] == _UNIX_LISTENING and len(line) > 7}
    for _, _, _, _, _, state, inode, *path in lines:
        if inode == "0" and state == _UNIX_CONNECTED and path:
            yield Undelivered(f"a client that has sent to {path[0]}", listeners.get(path[0], 0))
