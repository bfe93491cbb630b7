"""Whether the processes of a container have connections to the outside: of those only one end can be saved."""

from ipaddress import IPv4Address, IPv6Address

__all__ = ["has_outside_connections"]

_LISTENING, _TIME_WAIT, _CLOSED = "0A", "06", "07"


def has_outside_connections(pid: int) -> bool:
    """Whether the network of that process has TCP connections that are not on its loopback."""
    return any(
        state not in (_LISTENING, _TIME_WAIT, _CLOSED) and not _is_loopback(local)
        for table in ("tcp", "tcp6")
        for local, state in _sockets(pid, table)
    )


def _sockets(pid: int, table: str) -> list[tuple[str, str]]:
    try:
        with open(f"/proc/{pid}/net/{table}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except FileNotFoundError:  # a kernel without IPv6
        return []
    return [(row[1].partition(":")[0], row[3]) for row in rows]


def _is_loopback(hexadecimal: str) -> bool:
    """The kernel prints addresses as words in the host's byte order."""
    words = bytes.fromhex(hexadecimal)
    octets = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    if len(octets) == 4:
        return IPv4Address(octets).is_loopback
    address = IPv6Address(octets)
    return (address.ipv4_mapped or address).is_loopback
