"""With an allow-list a session reaches only what is on it, in every branch, whatever root inside does."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import look_at_host
from support.outside import ECHO_PORT, OTHER_PORT, Outside, host_address, outside_host
from support.reaching import forges, kill_nat, reaches
from waypoint import Branch, Session, Waypoint
from waypoint.errors import UsageError
from waypoint.model import Allowed, Network, NetworkMode

NAME = "allowed.example"


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with outside_host() as host:
        yield host


def only(*allowed: Allowed) -> Network:
    return Network(mode=NetworkMode.NAT, allowed=allowed)


@pytest.fixture
def confined(
    waypoint: Waypoint, workspace: Path, outside: Outside, leaves_nothing_behind: None
) -> Iterator[Session]:
    session = waypoint.create(workspace, network=only(Allowed(host=outside.address, port=ECHO_PORT)))
    yield session
    session.cleanup(force=True)


def everywhere(session: Session) -> list[Branch]:
    """Return the first branch, a forked one and a restored one."""
    session.snapshot("here")
    forked, restored = session.fork("here", ids=["forked", "restored"])
    restored.restore("here")
    return [session.main, forked, restored]


def test_only_allowed_addresses_are_reached_and_the_rest_is_refused_at_once(
    confined: Session, outside: Outside
) -> None:
    for branch in everywhere(confined):
        assert reaches(branch, outside.address, ECHO_PORT) == "reached"
        assert reaches(branch, outside.address, OTHER_PORT) == "refused"
        assert reaches(branch, outside.other_address, ECHO_PORT) == "refused"


def test_a_hand_made_frame_reaches_only_allowed_addresses(confined: Session, outside: Outside) -> None:
    for branch in everywhere(confined):
        assert forges(branch, outside.address, ECHO_PORT) == "open"
        assert forges(branch, outside.address, OTHER_PORT) == "closed"
        assert forges(branch, outside.other_address, ECHO_PORT) == "closed"


def test_root_inside_cannot_change_the_allow_list(confined: Session, outside: Outside) -> None:
    for attempt in (
        "nft flush ruleset",
        f"ip route add {outside.other_address} via 10.0.2.2",
        "ip link set tap0 down",
        "ip addr add 10.0.2.101/24 dev tap0",
        "unshare --net true",
    ):
        assert confined.exec(attempt).exit_code != 0, attempt
    assert reaches(confined, outside.other_address, ECHO_PORT) == "refused"


def test_name_queries_and_pings_do_not_get_out(confined: Session, outside: Outside) -> None:
    assert confined.exec("getent hosts example.com", timeout_s=20).exit_code != 0
    silent = """
import socket, struct, sys
ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, int(sys.argv[3]))
ask.settimeout(1)
try:
    ask.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1), (sys.argv[1], int(sys.argv[2])))
    print("answered", ask.recv(100))
except OSError:
    print("nothing")
"""
    confined.write_file("/tmp/ask.py", silent.encode())
    for address, port, protocol in (
        (outside.other_address, 0, socket.IPPROTO_ICMP),
        (outside.address, 0, socket.IPPROTO_ICMP),
        ("10.0.2.3", 53, socket.IPPROTO_UDP),
    ):
        words = f"{address} {port} {int(protocol)}"
        assert confined.exec(f"python3 /tmp/ask.py {words}", timeout_s=20).output == "nothing\n"


def test_an_allowed_name_is_looked_up_once_and_resolves_the_same_inside(
    waypoint: Waypoint, workspace: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(name: str, *_: object) -> list[object]:
        assert name == NAME
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (outside.address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    session = waypoint.create(workspace, network=only(Allowed(host=NAME, port=ECHO_PORT)))
    try:
        recorded = Allowed(host=NAME, port=ECHO_PORT, addresses=(outside.address,))
        assert waypoint.session(session.id).record.settings.network.allowed == (recorded,)
        for branch in everywhere(session):
            assert reaches(branch, NAME, ECHO_PORT) == "reached"
            assert reaches(branch, NAME, OTHER_PORT) == "refused"
    finally:
        session.cleanup(force=True)


def test_a_whole_network_can_be_allowed(waypoint: Waypoint, workspace: Path, outside: Outside) -> None:
    network = outside.network
    session = waypoint.create(workspace, network=only(Allowed(host=network)))
    try:
        for address in (outside.address, outside.other_address):
            assert reaches(session, address, OTHER_PORT) == "reached"
        address_of_host = host_address()
        assert address_of_host is not None
        with socket.create_server((address_of_host, 0)) as listener:
            assert reaches(session, address_of_host, listener.getsockname()[1]) == "refused"
    finally:
        session.cleanup(force=True)


def test_a_link_local_address_is_reached_only_if_allowed_itself(
    waypoint: Waypoint, workspace: Path, outside: Outside, leaves_nothing_behind: None
) -> None:
    everything = Allowed(host="0.0.0.0/0")
    session = waypoint.create(workspace, network=only(everything))
    for branch in everywhere(session):
        assert reaches(branch, outside.address, ECHO_PORT) == "reached"
        assert reaches(branch, outside.link_local, ECHO_PORT) == "refused"
        assert forges(branch, outside.link_local, ECHO_PORT) == "closed"
    session.cleanup(force=True)
    session = waypoint.create(
        workspace, network=only(everything, Allowed(host=outside.link_local, port=ECHO_PORT))
    )
    for branch in everywhere(session):
        assert reaches(branch, outside.link_local, ECHO_PORT) == "reached"
        assert reaches(branch, outside.link_local, OTHER_PORT) == "refused"
    session.cleanup(force=True)


def test_a_name_that_resolves_to_a_link_local_address_is_refused(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(None, None, 0, "", (address, 0)) for address in ("192.0.2.1", "169.254.169.254")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers)
    with pytest.raises(UsageError, match=r"link-local") as refused:
        waypoint.create(workspace, network=only(Allowed(host=NAME)))
    assert "169.254.169.254" in refused.value.hint


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("no-such-name.invalid", "cannot be looked up"),
        ("127.0.0.1", "loopback"),
        ("localhost", "loopback"),
        ("fd00::1", "IPv6"),
        ("10.0.0.1/8", "neither"),
        ("two words", "neither"),
    ],
)
def test_an_invalid_allow_list_entry_is_refused_and_nothing_is_made(
    waypoint: Waypoint, workspace: Path, state_dir: Path, host: str, said: str
) -> None:
    before = look_at_host(state_dir)
    with pytest.raises(UsageError, match=said):
        waypoint.create(workspace, network=only(Allowed(host=host)))
    assert look_at_host(state_dir) == before


def test_the_allow_list_still_holds_after_the_nat_was_killed(confined: Session, outside: Outside) -> None:
    kill_nat(confined)
    confined.snapshot()
    assert reaches(confined, outside.address, ECHO_PORT) == "reached"
    assert reaches(confined, outside.address, OTHER_PORT) == "refused"
    assert forges(confined, outside.other_address, ECHO_PORT) == "closed"
