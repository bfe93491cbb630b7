"""The network of a session is chosen before anything is made for it."""

import logging
import socket

import pytest

from waypoint.errors import ToolMissing, UsageError
from waypoint.model import Allowed, Network, NetworkMode
from waypoint.session.creation import network_choice
from waypoint.session.creation.network_choice import choose_network


def lacks_slirp() -> None:
    raise ToolMissing("slirp4netns", package="slirp4netns")


def has_all() -> None:
    return


def test_by_default_a_session_has_a_network_if_the_host_can_provide_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_choice, "require_nat", has_all)
    assert choose_network(None) == Network(mode=NetworkMode.NAT)


def test_otherwise_the_session_is_isolated_with_a_warning_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network_choice, "require_nat", lacks_slirp)
    with caplog.at_level(logging.WARNING):
        assert choose_network(None) == Network(mode=NetworkMode.ISOLATED)
    assert "no network" in caplog.text
    assert "apt-get install slirp4netns" in caplog.text


def test_a_requested_network_is_never_replaced_by_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_choice, "require_nat", lacks_slirp)
    with pytest.raises(ToolMissing, match="slirp4netns"):
        choose_network(Network(mode=NetworkMode.NAT))
    assert choose_network(Network(mode=NetworkMode.ISOLATED)).mode is NetworkMode.ISOLATED


def test_an_allow_list_is_for_nat_only() -> None:
    with pytest.raises(UsageError, match="isolated"):
        choose_network(Network(mode=NetworkMode.ISOLATED, allowed=()))


@pytest.mark.parametrize(
    ("host", "kept", "addresses"),
    [
        ("192.0.2.7", "192.0.2.7", ("192.0.2.7",)),
        ("192.0.2.7/32", "192.0.2.7", ("192.0.2.7",)),
        ("192.0.2.0/24", "192.0.2.0/24", ("192.0.2.0/24",)),
        ("0.0.0.0/0", "0.0.0.0/0", ("0.0.0.0/0",)),
        ("two.example", "two.example", ("192.0.2.1", "192.0.2.2")),
    ],
)
def test_the_addresses_of_an_allowed_name_are_recorded(
    monkeypatch: pytest.MonkeyPatch, host: str, kept: str, addresses: tuple[str, ...]
) -> None:
    answers = ["192.0.2.1", "192.0.2.2", "192.0.2.1"]
    monkeypatch.setattr(network_choice, "require_nat", has_all)
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_: [(None, None, 0, "", (address, 0)) for address in answers]
    )
    network = choose_network(Network(mode=NetworkMode.NAT, allowed=(Allowed(host=host, port=443),)))
    assert network.allowed == (Allowed(host=kept, port=443, addresses=addresses),)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.0.0/16", "0.0.0.0", "two words", "a\nb", "", "1.2.3", "-x", "::1"]
)
def test_an_invalid_allow_list_entry_is_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(network_choice, "require_nat", has_all)
    with pytest.raises(UsageError):
        choose_network(Network(mode=NetworkMode.NAT, allowed=(Allowed(host=host),)))
