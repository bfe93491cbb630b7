"""Names of images and ports as container engines write them."""

import pytest

from statefork.backends.containers.container import repository_of
from statefork.backends.containers.host_ports import published, takes_host_ports, without_host_ports


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("app", "app"),
        ("app:v1", "app"),
        ("host:5000/app", "host:5000/app"),
        ("host:5000/team/app:v1", "host:5000/team/app"),
        ("app@sha256:0123", "app"),
    ],
)
def test_the_repository_is_the_name_without_its_tag(image: str, repository: str) -> None:
    assert repository_of(image) == repository


@pytest.mark.parametrize(
    ("arguments", "freed"),
    [
        (["-p", "8000:80", "-v", "/a:/b"], ["-p", "80", "-v", "/a:/b"]),
        (["-p8000:80/udp"], ["-p80/udp"]),
        (["--publish=127.0.0.1:8000:80"], ["--publish=127.0.0.1::80"]),
        (["--publish", "[::1]:8000:80"], ["--publish", "[::1]::80"]),
    ],
)
def test_forks_publish_no_port_of_the_host(arguments: list[str], freed: list[str]) -> None:
    assert takes_host_ports(arguments)
    assert without_host_ports(arguments) == freed
    assert not takes_host_ports(freed)


def test_ports_chosen_by_the_engine_are_left_alone() -> None:
    arguments = ["--pid=host", "-p", "80", "--privileged", "-e", "-p"]
    assert without_host_ports(arguments) == arguments
    assert published(["-p", "80", "--publish=81:82"]) == ["80", "81:82"]
