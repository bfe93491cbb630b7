"""Limits through the command line: valid options, the message when a limit is reached, and what list shows."""

import os
from pathlib import Path

import pytest

from support.command_line import Cli

HOG = "python3 -c 'held = bytearray(256 << 20)'"
KILLED = "memory limit of 64M reached: 1 process was killed"
REACHED = {"limit": "memory", "maximum": 64 << 20, "times": 1, "message": KILLED}


@pytest.fixture
def limited(cli: Cli, workspace: Path) -> str:
    options = ("--memory", "64M", "--pids", "64", "--cpus", "1", "--disk", "1G")
    return cli("init", os.fspath(workspace), *options, "--quiet").partition(",")[0]


def test_a_reached_limit_is_reported_after_the_output(cli: Cli, limited: str) -> None:
    for arguments in ((limited, "--"), (limited, "--isolated", "--"), (limited, "--terminal", "main", "--")):
        ended = cli.run("exec", *arguments, f"echo before; {HOG} 2>/dev/null; echo after")
        assert (ended.exit_code, ended.lines[0], ended.lines[-1]) == (0, "before", "after")
        assert ended.err.splitlines()[-1] == f"waypoint: {KILLED}"
    document = cli.document("exec", limited, "--", f"{HOG}; true")
    assert document["limits_reached"] == [REACHED]
    assert "limits_reached" not in cli.document("exec", limited, "--", "true")


def test_a_failure_caused_by_a_limit_names_the_limit(cli: Cli, limited: str) -> None:
    error = cli.failure_document("exec", limited, "--", "y=$(head -c 200M /dev/zero | tr '\\0' y)")
    assert error["code"] == "shell_died"
    assert error["message"].endswith(f"was killed by SIGKILL; {KILLED}")
    assert error["limits_reached"] == [REACHED]


def test_list_shows_the_limits_and_the_usage_of_each_branch(cli: Cli, limited: str) -> None:
    cli("snapshot", limited, "point")
    cli("fork", limited, "point")
    document = cli.document("list", limited)
    assert document["limits"] == {"memory_bytes": 64 << 20, "cpus": 1.0, "pids": 64, "disk_bytes": 1 << 30}
    for branch in document["branches"]:
        usage = branch["usage"]
        assert 0 < usage["memory_bytes"] < 64 << 20
        assert usage["pids"] == 2
        assert usage["disk_bytes"] < 1 << 30
        assert usage["memory_kills"] == usage["pids_refused"] == 0
        assert usage["cpu_s"] > 0
        assert usage["cpu_throttled_s"] >= 0


@pytest.mark.parametrize(
    ("option", "value", "said", "hint"),
    [
        ("--memory", "1M", "a memory limit of 1M", "at least 16M"),
        ("--memory", "0", "a memory limit of 0", "at least 16M"),
        ("--memory", "much", "cannot read 'much' as a size", "for example"),
        ("--memory", "-1", "cannot read '-1' as a size", "for example"),
        ("--cpus", "nan", "a cpus limit of nan", "at least 0.01"),
        ("--cpus", "0", "a cpus limit of 0", "at least 0.01"),
        ("--cpus", "9999", "a cpus limit of 9999", f"at most {os.cpu_count()}"),
        ("--pids", "-1", "a pids limit of -1", "at least 8"),
        ("--disk", "100K", "a disk limit of 100K", "at least 16M"),
    ],
)
def test_an_invalid_limit_is_refused(
    cli: Cli, workspace: Path, option: str, value: str, said: str, hint: str
) -> None:
    failure = cli.failure("init", os.fspath(workspace), f"{option}={value}")
    assert (failure.exit_code, failure.code) == (2, "usage")
    assert said in failure.message
    assert hint in failure.hint
    assert cli("list", "--quiet") == ""


def test_doctor_lists_the_cgroup_controllers(cli: Cli) -> None:
    printed = cli.run("doctor").text
    for name in ("memory controller", "cpu controller", "pids controller", "btrfs simple quotas"):
        assert name in printed
