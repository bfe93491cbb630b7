"""Choose the network of a new session: a mode that this host can do, and the addresses of the names it may reach."""

import logging
import re
import socket
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network

from waypoint.errors import HostError, UsageError
from waypoint.kernel.network.egress import LINK_LOCAL, LOOPBACK
from waypoint.kernel.network.slirp import require_nat
from waypoint.model import Allowed, Network, NetworkMode

__all__ = ["choose_network"]

log = logging.getLogger(__name__)

_HOST_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")


def choose_network(asked: Network | None) -> Network:
    """The network that a session gets, with the names it may reach looked up; None asks for the best there is.

    Raises a HostError if this host cannot do what was asked for. Logs a warning of what a choice costs.
    """
    if asked is None:
        return _choose_best()
    if asked.allowed is not None and asked.mode is not NetworkMode.NAT:
        raise UsageError(f"only nat can limit what is reached, not {asked.mode}", hint="choose nat")
    if asked.mode is NetworkMode.NAT:
        require_nat()
    if asked.mode is NetworkMode.HOST:
        log.warning(
            "the session shares the host's network: it reaches the host's loopback, its branches share one set"
            " of ports, a checkpoint whose port is taken cannot be restored, and a restore ends all connections"
        )
    if asked.allowed is None:
        return asked
    return replace(asked, allowed=tuple(_resolve_allowed(allowed) for allowed in asked.allowed))


def _choose_best() -> Network:
    try:
        require_nat()
    except HostError as error:
        log.warning("the session has no network but its own loopback: %s (%s)", error, error.hint)
        return Network(mode=NetworkMode.ISOLATED)
    return Network(mode=NetworkMode.NAT)


def _resolve_allowed(allowed: Allowed) -> Allowed:
    literal = _as_literal(allowed.host)
    addresses = _addresses_of(allowed.host) if literal is None else (literal,)
    for address in addresses:
        if any(IPv4Network(address).subnet_of(loopback) for loopback in LOOPBACK):
            meant = allowed.host if allowed.host == address else f"{allowed.host} ({address})"
            raise UsageError(
                f"{meant} is the host's own loopback, which no session of --net nat reaches",
                hint="let the server listen on another address of the host, and allow that",
            )
        if literal is None and IPv4Network(address).subnet_of(LINK_LOCAL):
            raise UsageError(
                f"{allowed.host} is {address} today, a link-local address, where clouds give their hosts secrets",
                hint=f"if that is what you want, allow it by its address: {address}",
            )
    return replace(allowed, host=literal or allowed.host, addresses=addresses)


def _as_literal(text: str) -> str | None:
    """The address or network that ``text`` is, in its usual form; None if it must be a name."""
    with suppress(ValueError):
        network = IPv4Network(text)
        return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
    with suppress(ValueError):
        IPv6Network(text.strip("[]"))
        raise UsageError(
            f"{text} is an IPv6 address, which --net nat does not carry", hint="give an IPv4 address"
        )
    return None


def _addresses_of(name: str) -> tuple[str, ...]:
    if not _HOST_NAME.fullmatch(name) or name.replace(".", "").isdigit():
        raise UsageError(
            f"{name!r} is neither a host name nor an address", hint="such as pypi.org or 192.0.2.7"
        )
    try:
        answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(
            f"{name} cannot be looked up: {error.strerror}", hint="check the name, or allow it by its address"
        ) from error
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))
