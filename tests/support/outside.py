"""A host outside every session: a network namespace behind a veth pair, with an echo server in it."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from waypoint.kernel.network.namespace import new_network

__all__ = ["ECHO_PORT", "OTHER_PORT", "Outside", "host_address", "host_loopback_server", "outside_host"]

ECHO_PORT, OTHER_PORT = 7000, 7001

_SERVER = """
import socket, sys, threading
def echo(connection):
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)
def serve(listener):
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
for place in sys.argv[1:]:
    address, port = place.split(":")
    threading.Thread(target=serve, args=(socket.create_server((address, int(port)), backlog=128),)).start()
print("ready", flush=True)
"""


@dataclass(frozen=True)
class Outside:
    """The addresses of that host; at each, two ports echo what they are sent."""

    address: str
    other_address: str
    network: str
    link_local: str


@contextmanager
def outside_host() -> Iterator[Outside]:
    """Create such a host, with addresses nobody uses (RFC 2544), and remove it after the block."""
    name = f"wp{secrets.token_hex(4)}"
    # One of 15,872 networks, because another run may be using one too.
    net, first = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}", 8 * secrets.randbelow(31)
    ours, address, other = (f"{net}.{first + number}" for number in (1, 2, 3))
    link_local = f"169.254.{secrets.randbelow(100) + 1}.{secrets.randbelow(254) + 1}"
    with ExitStack() as stack:
        namespace = new_network()
        stack.callback(os.close, namespace)  # this removes the veth pair too
        there = f"/proc/{os.getpid()}/fd/{namespace}"
        within = ("nsenter", f"--net={there}")
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", there)
        _run("ip", "addr", "add", f"{ours}/29", "dev", name)
        _run("ip", "link", "set", name, "up")
        _run("ip", "route", "add", link_local, "dev", name, "src", ours)
        for command in (
            f"addr add {address}/29 dev eth0",
            f"addr add {other}/29 dev eth0",
            f"addr add {link_local} dev eth0",
            "link set eth0 up",
        ):
            _run(*within, "ip", *command.split())
        places = [f"{at}:{port}" for at in (address, other, link_local) for port in (ECHO_PORT, OTHER_PORT)]
        server = stack.enter_context(
            subprocess.Popen([*within, sys.executable, "-c", _SERVER, *places], stdout=subprocess.PIPE)
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield Outside(address, other, f"{net}.{first}/29", link_local)


@contextmanager
def host_loopback_server() -> Iterator[int]:
    """The port of a server on the host that listens on the loopback only."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def host_address() -> str | None:
    """An address of this host that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))  # nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})
