"""How programs inside look up names: /etc/hosts and /etc/resolv.conf of a new branch.

Like the rest of our files in a branch (:mod:`waypoint.engine.skeleton`) they are written into the upper directory
of the overlay before that is mounted, so that no link of the base leads a write elsewhere.
"""

import os
import stat
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.kernel.network.slirp import NAME_SERVER
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, openat2
from waypoint.model import Base, Network, NetworkMode, SessionRecord

__all__ = ["HOSTNAME", "host_name_servers", "write_name_files"]

HOSTNAME = "waypoint"
_HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
_HOSTNAME_ADDRESS = "127.0.1.1"
_HOSTS_BYTES_MAX = 1 << 20
_HOST_RESOLVER = Path("/etc/resolv.conf")
_KEPT = ("search", "domain", "options")
# Nothing listens there: a look-up fails at once instead of after its timeout.
_NO_NAME_SERVER = "127.0.0.1"


def write_name_files(platform: Platform, session: SessionRecord, incarnation: str) -> None:
    """Write into a new branch its own name, those it may reach, and which server to ask for others."""
    network = session.settings.network
    hosts = hosts_file(_base_hosts(session.base), network)
    texts = {"hosts": hosts, "resolv.conf": resolver_file(network)}
    directory = _upper_etc(session.base, platform.layout.layer(incarnation))
    if directory is None:
        return
    for name, text in texts.items():
        if text is not None:
            (directory / name).write_text(text)
            (directory / name).chmod(0o644)


def hosts_file(of_base: str | None, network: Network) -> str | None:
    """The text of /etc/hosts; None if the base's own has all of it."""
    known = {name for words in _lines(of_base or "") for name in words[1:]}
    added = [] if HOSTNAME in known else [f"{_HOSTNAME_ADDRESS} {HOSTNAME}"]
    added += [
        f"{address} {allowed.host}"
        for allowed in network.allowed or ()
        for address in allowed.addresses
        if allowed.host not in allowed.addresses  # else it was given as an address
    ]
    if not added and of_base is not None:
        return None
    text = _HOSTS if of_base is None else of_base
    return "\n".join([text.rstrip("\n"), *added, ""])


def resolver_file(network: Network, host: Path = _HOST_RESOLVER) -> str | None:
    """The text of /etc/resolv.conf; None where the base's own is as good as any other."""
    if network.mode is not NetworkMode.NAT:
        return None
    if network.allowed is not None:
        return f"# The names that can be reached are in /etc/hosts.\nnameserver {_NO_NAME_SERVER}\n"
    kept = [" ".join(words) for words in _lines(_text(host)) if words[0] in _KEPT]
    return "\n".join([f"nameserver {NAME_SERVER}", *kept, ""])


def host_name_servers(path: Path = _HOST_RESOLVER) -> Iterator[IPv4Address]:
    """The host's name servers, which the NAT asks for its session too."""
    for words in _lines(_text(path)):
        if words[0] == "nameserver" and len(words) > 1:
            try:
                yield IPv4Address(words[1])
            except ValueError:  # of IPv6, which the NAT does not ask
                continue


def _lines(text: str) -> Iterator[list[str]]:
    """The words of each line that is not empty or a comment."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            yield words


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _base_hosts(base: Base) -> str | None:
    """The base's own /etc/hosts, if it is a file that can be read; links stay inside the base."""
    root = os.open(base.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK  # a FIFO must not hold us up
        fd = openat2(root, "/etc/hosts", flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    except OSError:
        return None
    finally:
        os.close(root)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return file.read(_HOSTS_BYTES_MAX).decode(errors="replace")


def _upper_etc(base: Base, layer: Path) -> Path | None:
    """The directory of the layer that is /etc; None if the base has something other than a directory there."""
    mounted = next((extra for extra in base.extra_mounts if extra.path == "/etc"), None)
    if mounted is not None:
        return layer / "mounts" / mounted.key / "upper"
    directory = layer / "upper" / "etc"
    if directory.exists():
        return directory
    try:
        facts = os.lstat(base.path / "etc")
    except FileNotFoundError:
        directory.mkdir(mode=0o755)
        return directory
    if not stat.S_ISDIR(facts.st_mode):
        return None
    directory.mkdir()
    os.chown(directory, facts.st_uid, facts.st_gid)
    directory.chmod(stat.S_IMODE(facts.st_mode))
    return directory
