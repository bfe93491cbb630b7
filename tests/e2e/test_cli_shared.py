"""Volumes, secrets and hidden paths through the command line."""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli


@pytest.fixture
def shared() -> Iterator[Path]:
    path = Path(f"/var/tmp/waypoint-shared-{secrets.token_hex(4)}")
    path.mkdir()
    (path / "file").write_text("host\n")
    (path / "token").write_text("s3cret\n")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def home(cli: Cli) -> Path:
    """The caller's home, with keys in it."""
    home = Path(cli.env["HOME"])
    (home / ".ssh").mkdir()
    (home / ".ssh/id_rsa").write_text("a key\n")
    (home / ".netrc").write_text("a password\n")
    return home


def test_volumes_and_secrets_work_from_creation_to_restore(cli: Cli, workspace: Path, shared: Path) -> None:
    made = cli.run(
        *("init", os.fspath(workspace), "--name", "demo"),
        *("--volume", f"{shared}:/data", "--volume", f"{shared}/file:/srv/file:ro"),
        *("--secret", f"token={shared}/token"),
    )
    assert made.exit_code == 0
    assert f"waypoint: /data is {shared} of the host: shared by all branches, in no checkpoint\n" in made.err
    assert f"waypoint: /srv/file is {shared}/file of the host, read-only: shared by all" in made.err
    assert "s3cret" not in made.err + made.text

    assert cli("exec", "demo", "--", "cat /data/file /srv/file /run/secrets/token") == "host\nhost\ns3cret"
    cli("snapshot", "demo", "point")
    cli("exec", "demo", "--", "echo later >>/data/file")
    (shared / "token").write_text("rotated\n")
    cli("restore", "demo", "point")
    assert cli("exec", "demo", "--", "cat /data/file /run/secrets/token") == "host\nlater\nrotated"

    document = cli.document("list", "demo")
    assert document["volumes"] == [
        {"source": f"{shared}", "path": "/data", "read_only": False, "branchable": False},
        {"source": f"{shared}/file", "path": "/srv/file", "read_only": True, "branchable": False},
    ]
    assert document["secrets"] == ["token"]

    cli("cp", os.fspath(shared / "token"), "demo:/data/copied")
    assert (shared / "copied").read_text() == "rotated\n"
    failure = cli.failure("cp", os.fspath(shared / "token"), "demo:/srv/file")
    assert (failure.exit_code, failure.code) == (1, "copy_failed")
    assert "a volume is there" in failure.message

    (shared / "token").rename(shared / "away")
    failure = cli.failure("restore", "demo", "point")
    assert (failure.exit_code, failure.code) == (6, "share_unavailable")
    assert failure.message == f"cannot mount secret token={shared}/token: No such file or directory"
    (shared / "away").rename(shared / "token")
    shared.rename(f"{shared}-away")
    failure = cli.failure("fork", "demo", "point")
    assert (failure.exit_code, failure.code) == (6, "share_unavailable")
    assert failure.message == f"cannot mount volume {shared}:/data: No such file or directory"
    Path(f"{shared}-away").rename(shared)
    assert cli("exec", "demo", "--", "cat /data/file") == "host\nlater"


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--volume", "/srv", "usage"),
        ("--volume", ":/data", "usage"),
        ("--volume", "/srv:/data:rx", "usage"),
        ("--volume", "/no/such:/data", "not_found"),
        ("--volume", "/etc/passwd:/etc", "share_unavailable"),
        ("--secret", "token", "usage"),
        ("--secret", "../x=/etc/passwd", "invalid_name"),
        ("--secret", "token=/no/such", "usage"),
        ("--hide", "relative", "usage"),
        ("--show", "/etc/ssl/private/key", "usage"),
    ],
)
def test_what_cannot_be_shared_or_hidden_is_refused(
    cli: Cli, workspace: Path, option: str, value: str, code: str
) -> None:
    failure = cli.failure("init", os.fspath(workspace), f"{option}={value}")
    assert failure.code == code
    assert cli("list", "--quiet") == ""


def test_init_reports_what_is_hidden_and_what_is_not(cli: Cli, workspace: Path, home: Path) -> None:
    made = cli.run("init", os.fspath(workspace), "--name", "demo", "--show", f"{home}/.netrc")
    (note,) = [line for line in made.err.splitlines() if "hidden from the session" in line]
    assert note.startswith("waypoint: hidden from the session: ~/.ssh ")
    assert note.endswith(" more (--show PATH shows it)")
    assert "waypoint: hidden by default, but not from this session: ~/.netrc\n" in made.err
    assert cli("exec", "demo", "--", f"ls {home}/.ssh; cat {home}/.netrc") == "a password"

    document = cli.document("init", os.fspath(workspace))
    assert {f"{home}/.ssh", f"{home}/.netrc", "/etc/shadow"} <= set(document["hidden"])
    assert all(os.path.lexists(path) for path in document["hidden"])
    quiet = cli.run("init", os.fspath(workspace), "--quiet")
    assert quiet.err == ""


def test_the_configuration_file_sets_what_is_hidden(cli: Cli, workspace: Path, home: Path) -> None:
    (workspace / "private").write_text("mine\n")
    config = home / ".waypoint/config.json"
    config.parent.mkdir()
    config.write_text(f'{{"hide": ["{workspace}/priv*"], "show": ["~/.ssh"]}}')
    document = cli.document("init", os.fspath(workspace), "--name", "demo")
    assert f"{home}/.ssh" in document["shown"]
    assert {os.path.basename(path) for path in document["shown"]} == {".ssh"}  # root's own, if it has one
    assert f"{workspace}/private" in document["hidden"]
    assert cli("exec", "demo", "--", f"ls; cat {home}/.ssh/id_rsa") == "a key"
    bad = home / "bad.json"
    bad.write_text('{"hide": "~/.ssh"}')
    failure = cli.failure("init", os.fspath(workspace), env={"WAYPOINT_CONFIG": os.fspath(bad)})
    assert failure.message == f"configuration file {bad}: hide must be a list of strings"


def test_no_environment_variable_of_the_caller_gets_in(cli: Cli, workspace: Path) -> None:
    env = {"AWS_SECRET_ACCESS_KEY": "do-not-tell", "SSH_AUTH_SOCK": "/tmp/do-not-tell"}
    assert cli.run("init", os.fspath(workspace), "--name", "demo", env=env).exit_code == 0
    for words in (["exec", "demo"], ["exec", "--isolated", "demo"]):
        ended = cli.run(*words, "--", "env; cat /proc/[0-9]*/environ 2>/dev/null; true", env=env)
        assert ended.exit_code == 0
        assert b"do-not-tell" not in ended.out
