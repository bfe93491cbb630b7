"""The walls of a session as the command line offers them."""

import os
from pathlib import Path

from support.command_line import Cli


def test_a_privileged_session_prints_a_warning(cli: Cli, workspace: Path) -> None:
    made = cli.run("init", os.fspath(workspace), "--quiet", "--privileged", "--name", "bare")
    assert made.exit_code == 0
    assert "warning" in made.err
    assert "root inside it is root of this host" in made.err
    cli("init", os.fspath(workspace), "--quiet", "--name", "walled")
    bare, walled = (
        next(line for line in cli("list").splitlines() if name in line) for name in ("bare", "walled")
    )
    assert "PRIVILEGED" in bare
    assert "PRIVILEGED" not in walled
    assert "PRIVILEGED" in cli("list", "bare")
    assert cli.document("list", "bare")["walls"]["privileged"] is True
    assert [session["walls"]["privileged"] for session in cli.document("list")["sessions"]] == [True, False]


def test_no_walls_cannot_be_combined_with_an_allow_list(cli: Cli, workspace: Path) -> None:
    failure = cli.failure("init", os.fspath(workspace), "--privileged", "--allow", "192.0.2.1")
    assert (failure.exit_code, failure.code) == (2, "usage")
    assert "privileged" in failure.message
    assert cli("list", "--quiet") == ""


def test_init_takes_user_read_only_base_and_no_new_privileges(cli: Cli, workspace: Path) -> None:
    options = ("--user", "daemon", "--read-only-base", "--no-new-privs")
    session = cli("init", os.fspath(workspace), "--quiet", *options).partition(",")[0]
    cli("snapshot", session, "point")
    cli("fork", session, "point", "--id", "other")
    for branch in (session, f"{session}:other"):
        assert cli("exec", branch, "--", "id -un; echo $HOME") == "daemon\n/usr/sbin"
        assert cli("exec", branch, "--isolated", "--", "id -un; echo $HOME") == "daemon\n/usr/sbin"
        assert cli.run("exec", branch, "--isolated", "--user", "root", "--", "touch /etc/x").exit_code == 1
        assert cli("exec", branch, "--", "grep NoNewPrivs /proc/self/status") == "NoNewPrivs:\t1"
    assert cli.document("list", session)["user"] == "daemon"


def test_an_unknown_user_is_reported_by_name(cli: Cli, workspace: Path) -> None:
    failure = cli.failure("init", os.fspath(workspace), "--user", "no-such-user")
    assert (failure.exit_code, failure.code, failure.message) == (
        3,
        "not_found",
        "no user named 'no-such-user'",
    )
