"""The network of an incarnation: its namespace, and outside of it the NAT that connects it to the host's network.

The NAT has a cgroup of its own next to the branch's: killing that cgroup ends it, and what may be reached through it
is a property of that cgroup, in force before the NAT starts (:mod:`waypoint.kernel.network.egress`).
"""

import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv4Network

from waypoint.engine.name_files import host_name_servers
from waypoint.engine.platform import Platform
from waypoint.kernel.network.egress import LINK_LOCAL, LOOPBACK, Rule, confine
from waypoint.kernel.network.namespace import new_network, own_network
from waypoint.kernel.network.slirp import Nat, nat_started
from waypoint.model import BranchRecord, Network, NetworkMode, SessionRecord

__all__ = [
    "BranchNetwork",
    "egress_rules",
    "is_cut_off",
    "network_made",
    "open_network",
    "repair_network",
]

log = logging.getLogger(__name__)

_DNS_PORT = 53


class BranchNetwork:
    """The network of a new incarnation, which is made at the same time as its files."""

    def __init__(self, making: "Future[tuple[int, Nat | None]]") -> None:
        self._making = making

    @property
    def fd(self) -> int:
        """A descriptor of the namespace."""
        return self._making.result()[0]

    def await_ready(self) -> None:
        """Wait until the NAT, if there is one, is ready; restored processes must not run before."""
        nat = self._making.result()[1]
        if nat is not None:
            nat.await_ready()


@contextmanager
def network_made(platform: Platform, session: SessionRecord, incarnation: str) -> Iterator[BranchNetwork]:
    """Make the network of a new incarnation while the block runs. It outlives the block if something runs in it.

    On failure parts may exist: the caller destroys the incarnation.
    """
    with ExitStack() as held, ThreadPoolExecutor(1) as worker:
        yield BranchNetwork(worker.submit(_make, platform, session.settings.network, incarnation, held))


def _make(platform: Platform, network: Network, incarnation: str, held: ExitStack) -> tuple[int, Nat | None]:
    fd = own_network() if network.mode is NetworkMode.HOST else new_network()
    held.callback(os.close, fd)
    if network.mode is not NetworkMode.NAT:
        return fd, None
    return fd, held.enter_context(_nat(platform, network, incarnation, fd))


def is_cut_off(platform: Platform, session: SessionRecord, branch: BranchRecord) -> bool:
    """Whether a running branch has lost its NAT: killed by someone, or for want of memory."""
    return (
        session.settings.network.mode is NetworkMode.NAT
        and not platform.network_cgroup(branch.incarnation).is_populated()
        and platform.cgroup(branch.incarnation).is_populated()
    )


def repair_network(platform: Platform, session: SessionRecord, branch: BranchRecord) -> None:
    """Start the NAT of a branch again if it has lost it. The caller holds the branch's lock."""
    if not is_cut_off(platform, session, branch):
        return
    log.warning("the network of branch %s of session %s had died: starting it again", branch.name, session.id)
    platform.network_cgroup(branch.incarnation).remove()  # with its rules; they are made again
    with (
        open_network(platform, branch) as fd,
        _nat(platform, session.settings.network, branch.incarnation, fd) as nat,
    ):
        nat.await_ready()


@contextmanager
def open_network(platform: Platform, branch: BranchRecord) -> Iterator[int]:
    """Open the network namespace of a running branch. Raises ProcessLookupError if its init has ended."""
    try:
        fd = os.open(f"/proc/{branch.init_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(f"init of branch {branch.name!r} has ended") from error
    try:
        # Checked after opening: if the pid is that of init now, it was so when the file was opened.
        if branch.init_pid not in platform.cgroup(branch.incarnation).members():
            raise ProcessLookupError(f"process {branch.init_pid} is not init of branch {branch.name!r}")
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _nat(platform: Platform, network: Network, incarnation: str, fd: int) -> Iterator[Nat]:
    cgroup = platform.network_cgroup(incarnation)
    cgroup.create()
    rules, otherwise = egress_rules(network, host_name_servers())
    confine(cgroup.path, rules, otherwise=otherwise)
    resolves = network.allowed is None
    with nat_started(platform.criu.launcher, cgroup.path, fd, resolves=resolves) as nat:
        yield nat


def egress_rules(network: Network, name_servers: Iterable[IPv4Address]) -> tuple[list[Rule], bool]:
    """The rules of what may leave a session, and whether all else may.

    The host's loopback is never reached, except its name servers; link-local addresses only if they themselves, and
    not a network around them, are allowed.
    """
    never = [Rule(net, None, permits=False) for net in LOOPBACK]
    link_local = Rule(LINK_LOCAL, None, permits=False)
    if network.allowed is None:
        dns = [Rule(IPv4Network(server), _DNS_PORT, permits=True) for server in name_servers]
        return [*dns, *never, link_local], True
    permitted = [
        Rule(IPv4Network(address), allowed.port, permits=True)
        for allowed in network.allowed
        for address in allowed.addresses
    ]
    asked_for = [rule for rule in permitted if rule.network.subnet_of(LINK_LOCAL)]
    return [*never, *asked_for, link_local, *permitted], False
