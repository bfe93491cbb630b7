"""The rules for what a session may reach, and the files by which it resolves names."""

from ipaddress import IPv4Address
from pathlib import Path

import pytest

from waypoint.engine.branch_network import egress_rules
from waypoint.engine.name_files import host_name_servers, hosts_file, resolver_file
from waypoint.model import Allowed, Network, NetworkMode

NAT = Network(mode=NetworkMode.NAT)
CONFINED = Network(
    mode=NetworkMode.NAT,
    allowed=(
        Allowed(host="one.example", port=443, addresses=("192.0.2.1", "192.0.2.2")),
        Allowed(host="198.51.100.0/24", addresses=("198.51.100.0/24",)),
    ),
)


def verdict(network: Network, address: str, port: int, servers: tuple[str, ...] = ()) -> bool:
    """Decide as the kernel does: the first rule that matches."""
    rules, otherwise = egress_rules(network, [IPv4Address(server) for server in servers])
    for rule in rules:
        if IPv4Address(address) in rule.network and rule.port in (None, port):
            return rule.permits
    return otherwise


@pytest.mark.parametrize(
    ("address", "port", "permits"),
    [
        ("192.0.2.1", 443, True),
        ("127.0.0.1", 80, False),
        ("0.0.0.0", 80, False),
        ("169.254.169.254", 80, False),
        ("127.0.0.53", 53, True),
        ("127.0.0.53", 80, False),
        ("127.0.0.54", 53, False),
    ],
)
def test_without_an_allow_list_all_but_the_host_and_cloud_metadata_is_reached(
    address: str, port: int, permits: bool
) -> None:
    assert verdict(NAT, address, port, ("127.0.0.53",)) is permits


@pytest.mark.parametrize(
    ("address", "port", "permits"),
    [
        ("192.0.2.1", 443, True),
        ("192.0.2.2", 443, True),
        ("192.0.2.1", 80, False),
        ("192.0.2.3", 443, False),
        ("198.51.100.9", 0, True),
        ("127.0.0.53", 53, False),
        ("169.254.169.254", 80, False),
    ],
)
def test_with_an_allow_list_nothing_else_is_reached_not_even_name_servers(
    address: str, port: int, permits: bool
) -> None:
    assert verdict(CONFINED, address, port, ("127.0.0.53",)) is permits


def test_the_hosts_loopback_is_never_reached_and_cloud_metadata_only_by_address() -> None:
    everything = Allowed(host="0.0.0.0/0", addresses=("0.0.0.0/0",))
    cloud = Allowed(host="169.254.169.254", port=80, addresses=("169.254.169.254",))
    network = Network(mode=NetworkMode.NAT, allowed=(everything,))
    assert not verdict(network, "127.0.0.1", 80)
    assert not verdict(network, "169.254.169.254", 80)
    network = Network(mode=NetworkMode.NAT, allowed=(everything, cloud))
    assert verdict(network, "169.254.169.254", 80)
    assert not verdict(network, "169.254.169.254", 81)
    assert verdict(network, "192.0.2.1", 81)


def test_a_branch_resolves_its_own_name_and_the_hosts_of_the_base() -> None:
    assert hosts_file("127.0.0.1 localhost\n10.1.1.1 db", NAT) == (
        "127.0.0.1 localhost\n10.1.1.1 db\n127.0.1.1 waypoint\n"
    )
    assert hosts_file("127.0.0.1 localhost waypoint # ours\n", NAT) is None
    assert hosts_file("127.0.0.1 localhost # waypoint\n", NAT) is not None
    assert "127.0.0.1 localhost\n" in (hosts_file(None, NAT) or "")


def test_allowed_names_keep_their_addresses() -> None:
    lines = (hosts_file("127.0.0.1 localhost waypoint\n", CONFINED) or "").splitlines()
    assert lines == ["127.0.0.1 localhost waypoint", "192.0.2.1 one.example", "192.0.2.2 one.example"]


def test_names_are_looked_up_at_the_nat_with_the_hosts_search_domains(tmp_path: Path) -> None:
    host = tmp_path / "resolv.conf"
    host.write_text(
        "# made by hand\nnameserver 127.0.0.53\nnameserver fd00::1\nsearch lan example\noptions edns0\n"
    )
    assert resolver_file(NAT, host) == "nameserver 10.0.2.3\nsearch lan example\noptions edns0\n"
    assert resolver_file(Network(mode=NetworkMode.ISOLATED), host) is None
    assert resolver_file(Network(mode=NetworkMode.HOST), host) is None
    assert "10.0.2.3" not in (resolver_file(CONFINED, host) or "")
    assert list(host_name_servers(host)) == [IPv4Address("127.0.0.53")]
    assert list(host_name_servers(tmp_path / "missing")) == []
