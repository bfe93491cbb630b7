"""Network namespaces by descriptor: nothing is mounted, so nothing is left over when the last holder ends."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from waypoint.kernel.syscalls import CLONE_NEWNET, set_namespace, unshare

__all__ = ["new_network", "own_network", "within_network"]

Result = TypeVar("Result")

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IFREQ = struct.Struct("16sh22x")
_EVERY_GROUP = "0 2147483647"
_SETTINGS = Path("/proc/sys/net")  # of the namespace of the thread that opens them
_OF_THREAD = "/proc/thread-self/ns/net"


def own_network() -> int:
    """The network namespace of the caller, as a descriptor."""
    return os.open(_OF_THREAD, os.O_RDONLY | os.O_CLOEXEC)


def new_network() -> int:
    """A network namespace with nothing but a loopback that is up, as a descriptor that keeps it alive.

    Every user in it may send pings, without a privilege. Devices that are added have no IPv6 address.
    """

    def make() -> int:
        unshare(CLONE_NEWNET)
        _bring_loopback_up()
        (_SETTINGS / "ipv4/ping_group_range").write_text(_EVERY_GROUP)
        with suppress(FileNotFoundError):  # a kernel without IPv6
            (_SETTINGS / "ipv6/conf/default/disable_ipv6").write_text("1")
        return own_network()

    return _in_own_thread(make)


def within_network(fd: int, action: Callable[[], Result]) -> Result:
    """Call ``action`` inside the namespace behind ``fd``. Sockets that it makes stay there."""

    def enter() -> Result:
        set_namespace(fd, CLONE_NEWNET)
        return action()

    return _in_own_thread(enter)


def _in_own_thread(action: Callable[[], Result]) -> Result:
    """Run in a thread that ends with it: the caller's own namespace never changes, not even for a moment."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(action).result()


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _, flags = _IFREQ.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))
