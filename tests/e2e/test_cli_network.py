"""The network of sessions through the command line: modes, allow-lists, exposed ports."""

import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.command_line import Cli


def serve(cli: Cli, target: str, port: int) -> None:
    cli(
        "exec",
        target,
        "--",
        f"python3 -m http.server {port} --bind 127.0.0.1 --directory /tmp >/dev/null 2>&1 &",
    )
    cli(
        "exec",
        target,
        "--timeout",
        "30",
        "--",
        f"until curl -sf http://127.0.0.1:{port}/; do sleep 0.05; done",
    )


def read(place: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{place}/{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_an_exposed_server_is_reached_until_unexpose(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "echo first >/tmp/page")
    serve(cli, shell, 8000)
    cli("snapshot", shell, "serving")
    place = cli("expose", shell, "8000", "--quiet")
    assert read(place, "page") == "first\n"
    cli("exec", shell, "--", "echo second >/tmp/page")
    assert read(place, "page") == "second\n"
    cli("restore", shell, "serving")
    assert read(place, "page") == "first\n"
    document = cli.document("ports", shell)
    host_port = int(place.partition(":")[2])
    assert document == {
        "ports": [
            {"session_id": shell, "branch": "main", "port": 8000, "host_port": host_port, "listening": True}
        ]
    }
    assert cli("ports") == f"Exposed ports:\n  {place} -> {shell}:main port 8000 listening"
    assert cli("unexpose", shell, "8000") == "Port 8000 of branch 'main' is no longer exposed"
    assert cli("ports", shell) == "No exposed ports"
    with pytest.raises(urllib.error.URLError, match="refused"):
        read(place, "page")


def test_a_requested_host_port_is_used_or_refused(cli: Cli, shell: str) -> None:
    port = free_port()
    text = cli("expose", shell, "8000", "--host-port", str(port))
    assert text == f"127.0.0.1:{port} forwards to port 8000 of branch 'main' (nothing listens there yet)"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failure = cli.failure("expose", shell, "8001", "--host-port", str(taken.getsockname()[1]))
    assert (failure.exit_code, failure.code) == (5, "busy")
    assert "--host-port" in failure.hint


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["expose", "nosuch", "1"], 3, "not_found"),
        (["expose", "SHELL:nosuch", "1"], 3, "not_found"),
        (["expose", "SHELL", "0"], 2, "usage"),
        (["expose", "SHELL", "1", "--host-port", "0"], 2, "usage"),
        (["unexpose", "SHELL", "1"], 3, "not_found"),
        (["ports", "nosuch"], 3, "not_found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_wrong_uses_of_ports_are_refused(
    cli: Cli, shell: str, words: list[str], exit_code: int, code: str
) -> None:
    failure = cli.failure(*(word.replace("SHELL", shell) for word in words))
    assert (failure.exit_code, failure.code) == (exit_code, code)


def test_init_chooses_what_a_session_can_reach(cli: Cli, workspace: Path) -> None:
    isolated = cli("init", os.fspath(workspace), "--net", "isolated", "--quiet").partition(",")[0]
    assert cli("exec", isolated, "--", "ip -br link | wc -l") == "1"
    assert cli.document("init", os.fspath(workspace))["network"] == "nat"
    allowed = cli("init", os.fspath(workspace), "--allow", "198.18.0.1:80", "--quiet").partition(",")[0]
    assert "10.0.2.100" in cli("exec", allowed, "--", "ip -br addr")
    assert cli("exec", allowed, "--", "curl -s --max-time 20 http://198.18.0.2/; echo $?") == "7"


def test_sharing_the_hosts_network_prints_a_warning(cli: Cli, workspace: Path) -> None:
    ended = cli.run("init", os.fspath(workspace), "--net", "host")
    assert ended.exit_code == 0
    assert "shares the host's network" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--allow", "no-such-name.invalid"], "no-such-name.invalid"),
        (["--allow", "127.0.0.1:80"], "127.0.0.1"),
        (["--allow", "192.0.2.7:port"], "192.0.2.7:port"),
        (["--allow", "fd00::1"], "fd00::1"),
        (["--net", "isolated", "--allow", "192.0.2.7"], "isolated"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_an_invalid_allow_list_entry_is_reported_and_nothing_is_made(
    cli: Cli, workspace: Path, words: list[str], said: str
) -> None:
    failure = cli.failure("init", os.fspath(workspace), *words)
    assert (failure.exit_code, failure.code) == (2, "usage")
    assert said in failure.message
    assert cli("list", "--quiet") == ""


def test_the_output_of_init_and_expose_ends_with_the_command(cli: Cli, workspace: Path) -> None:
    """Neither the NAT of the session nor its forwarder keeps the caller's output open."""
    process = cli.start("init", os.fspath(workspace), "--quiet")
    out, _ = process.communicate(timeout=60)
    session = out.decode().partition(",")[0]
    process = cli.start("expose", session, "8000")
    out, _ = process.communicate(timeout=60)
    assert b"forwards to port 8000" in out


def test_doctor_reports_what_a_network_needs(cli: Cli) -> None:
    abilities = {ability["name"]: ability for ability in cli.document("doctor")["abilities"]}
    for name in ("slirp4netns", "tap devices", "egress rules"):
        assert abilities[name]["found"], abilities[name]
        assert not abilities[name]["required"]
    assert abilities["slirp4netns"]["remedy"] == "apt-get install slirp4netns"
