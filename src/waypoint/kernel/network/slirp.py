"""User-mode NAT for one network namespace: slirp4netns, a small process on the host's side of it.

It answers inside as gateway and name server, and turns what arrives at the device there into calls of ordinary
sockets of the host. So nothing of the host's routes, firewall or settings changes, every namespace has the
same addresses, and no other host can reach in. It knows nothing of connections that are older than itself, and resets
them: so connections to the outside end when a branch is restored.
"""

import fcntl
import os
import select
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waypoint.errors import AbilityMissing, EngineError, ToolMissing
from waypoint.kernel.network.egress import require_confinement
from waypoint.kernel.network.namespace import within_network
from waypoint.kernel.processes.programs import CLEAN_ENV, DEVNULL, spawn

__all__ = ["INNER_ADDRESS", "NAME_SERVER", "SLIRP", "TUN", "Nat", "nat_started", "require_nat"]

SLIRP = "slirp4netns"
TUN = Path("/dev/net/tun")
DEVICE = "tap0"
# What slirp4netns gives every namespace.
INNER_ADDRESS = "10.0.2.100"
NAME_SERVER = "10.0.2.3"
MAC = "02:00:0a:00:02:64"  # of no vendor; the same in every namespace too
MTU = 65520  # there is no wire: large packets mean fewer wake-ups
READY_TIMEOUT_S = 30.0

_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000


def require_nat() -> None:
    """Raise ToolMissing or AbilityMissing for what this host lacks for NAT."""
    if shutil.which(SLIRP, path=CLEAN_ENV["PATH"]) is None:
        raise ToolMissing(SLIRP, package=SLIRP)
    if not TUN.exists():
        raise AbilityMissing(f"there is no {TUN}", hint="modprobe tun; in a container: give it that device")
    require_confinement()


class Nat:
    """A NAT that is starting."""

    def __init__(self, ready: int, complaint: int) -> None:
        self._ready = ready
        self._complaint = complaint

    def await_ready(self) -> None:
        """Wait until the device is there and has its address."""
        if select.select([self._ready], [], [], READY_TIMEOUT_S)[0] and os.read(self._ready, 1):
            return
        os.set_blocking(self._complaint, False)
        try:
            answer = os.read(self._complaint, 4096).decode(errors="replace").strip()
        except BlockingIOError:
            answer = ""
        raise EngineError(
            f"{SLIRP} gives the branch no network: {answer or 'it does not answer'}",
            hint="waypoint doctor shows what is missing; --net isolated does not need it",
        )


@contextmanager
def nat_started(launcher: Path, cgroup: Path, netns: int, *, resolves: bool) -> Iterator[Nat]:
    """Start the NAT of the namespace behind ``netns`` in ``cgroup``; it outlives the block, and us.

    With ``resolves``, it passes name look-ups on to the host's name servers.
    """
    within_network(netns, _make_device)
    ready, ready_end = os.pipe()
    complaint, complaint_end = os.pipe()
    try:
        try:
            starter = spawn(
                (
                    *(os.fspath(launcher), "enter", "--cgroup", os.fspath(cgroup), "--"),
                    # Its sandbox makes only the root private before it unmounts all: what lies below a shared mount
                    # would be unmounted on the host too.
                    *("unshare", "--mount", "--propagation", "private", "--"),
                    *("setsid", "--fork", SLIRP),  # nobody's child: whoever started it need not wait for it
                    *("--configure", f"--mtu={MTU}", f"--macaddress={MAC}", "--disable-host-loopback"),
                    *("--enable-sandbox", "--enable-seccomp"),
                    *(() if resolves else ("--disable-dns",)),
                    *(f"--ready-fd={ready_end}", "--netns-type=path", f"/proc/self/fd/{netns}", DEVICE),
                ),
                stdout=DEVNULL,
                stderr=complaint_end,
                pass_fds=(ready_end, netns),
            )
        finally:
            os.close(ready_end)
            os.close(complaint_end)
        try:
            yield Nat(ready, complaint)
        finally:
            starter.wait()
    finally:
        os.close(ready)
        os.close(complaint)


def _make_device() -> None:
    """Make the device, replacing an existing one, and let it stay until its namespace ends.

    A device that ends with its last user is removed in that user's exit, which takes the kernel tens of milliseconds
    and holds up every other change of a network; one that ends with its namespace is removed in the background.
    """
    if DEVICE in (name for _, name in socket.if_nameindex()):
        _set_device(stays=False)
    _set_device(stays=True)


def _set_device(*, stays: bool) -> None:
    fd = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TAP | _IFF_NO_PI))
        fcntl.ioctl(fd, _TUNSETPERSIST, stays)
    finally:
        os.close(fd)
