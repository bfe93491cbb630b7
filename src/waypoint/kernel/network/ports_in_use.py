"""Which ports a network namespace has in use, as the kernel lists them."""

from pathlib import Path

__all__ = ["listening_ports", "taken_ports"]

_LISTEN, _UNCONNECTED = "0A", "07"  # of TCP; a socket of UDP without a peer


def listening_ports(process: int) -> set[int]:
    """The TCP ports with a listener in the network namespace of ``process``; empty if that has ended."""
    return _ports(process, ("tcp", "tcp6"), _LISTEN)


def taken_ports(process: int) -> set[int]:
    """The TCP and UDP ports at which somebody waits in the network namespace of ``process``."""
    return listening_ports(process) | _ports(process, ("udp", "udp6"), _UNCONNECTED)


def _ports(process: int, tables: tuple[str, ...], state: str) -> set[int]:
    found = set()
    for table in tables:
        try:
            lines = Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
        except OSError:  # it has ended, or the kernel knows no IPv6
            continue
        for line in lines:
            _, local, _, status, *_ = line.split()
            if status == state:
                found.add(int(local.rpartition(":")[2], 16))
    return found
