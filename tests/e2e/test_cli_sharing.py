"""Several processes use one session: different branches at once, one branch in turn."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import Cli
from waypoint.store.layout import Layout
from waypoint.store.lock import branch_lock, locked

UNTIL_GO = "echo running; until [ -e go ]; do sleep 0.02; done; echo done"


@contextmanager
def running_command(cli: Cli, target: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A command line that runs in the branch until the file ``go`` exists or the block ends."""
    with cli.start("exec", target, "--", UNTIL_GO) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            yield process
        finally:
            process.kill()


def live(cli: Cli, session: str, branch: str, path: Path) -> Path:
    return Path(f"{cli.state_dir}/sessions/{session}/{branch}{path}")


def test_a_second_command_waits_for_the_first_or_reports_busy(cli: Cli, shell: str, workspace: Path) -> None:
    with running_command(cli, shell) as first:
        failure = cli.failure("exec", shell, "--no-wait", "--", "echo second")
        assert (failure.exit_code, failure.code) == (125, "busy")
        assert f"branch 'main' of session {shell} is busy" in failure.message
        with cli.start("exec", shell, "--", "echo second") as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(0.5)
            live(cli, shell, "main", workspace).joinpath("go").touch()
            out, _ = first.communicate(timeout=60)
            assert (out, first.returncode) == (b"done\n", 0)
            out, _ = second.communicate(timeout=60)
            assert (out, second.returncode) == (b"second\n", 0)


def test_without_waiting_a_branch_in_use_is_reported_busy(cli: Cli, shell: str) -> None:
    cli("fork", shell, "main", "--id", "side")
    with locked(Layout(cli.state_dir).lock(branch_lock(shell, "side")), what="the test"):
        for words in (
            ["snapshot", f"{shell}:side", "--no-wait"],
            ["restore", f"{shell}:side", "checkpoint-1", "--no-wait"],
            ["destroy", f"{shell}:side", "--no-wait"],
        ):
            failure = cli.failure(*words)
            assert (failure.exit_code, failure.code) == (5, "busy"), words
            assert failure.message == f"branch 'side' of session {shell} is busy"
            assert "--no-wait" in failure.hint
        failure = cli.failure("cleanup", shell)
        assert (failure.exit_code, failure.code) == (5, "busy")
        assert "--force" in failure.hint
        assert cli("snapshot", shell, "of-main", "--quiet") == "of-main"  # main is free


def test_a_second_caller_waits_for_the_branch_lock(cli: Cli, shell: str) -> None:
    with locked(Layout(cli.state_dir).lock(branch_lock(shell, "main")), what="the test"):
        waiting = cli.start("snapshot", shell, "later", "--quiet")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.7)
        assert cli("list", shell, "--quiet") == ""
    out, _ = waiting.communicate(timeout=60)
    assert (out, waiting.returncode) == (b"later\n", 0)


def test_two_processes_work_on_different_branches_at_once(cli: Cli, shell: str, workspace: Path) -> None:
    cli("fork", shell, "main", "--n", "2")
    with (
        running_command(cli, f"{shell}:fork-2") as one,
        running_command(cli, f"{shell}:fork-3") as other,
    ):
        assert cli("exec", shell, "--", "echo and main") == "and main"
        cli("snapshot", f"{shell}:fork-2", "while-running")
        for branch, process in (("fork-3", other), ("fork-2", one)):
            live(cli, shell, branch, workspace).joinpath("go").touch()
            out, _ = process.communicate(timeout=60)
            assert (out, process.returncode) == (b"done\n", 0)


def test_a_command_in_a_restored_branch_fails_with_that_reason(cli: Cli, shell: str) -> None:
    cli("snapshot", shell, "before")
    with running_command(cli, shell) as process:
        cli("restore", shell, "before")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 125
        assert f"branch 'main' of session {shell} was restored while the command ran" in err.decode()


def test_concurrent_snapshots_of_one_branch_all_succeed(cli: Cli, shell: str) -> None:
    callers = [cli.start("snapshot", shell, "--quiet") for _ in range(4)]
    names = {caller.communicate(timeout=60)[0].decode().strip() for caller in callers}
    assert [caller.returncode for caller in callers] == [0, 0, 0, 0]
    assert set(cli("list", shell, "--quiet").splitlines()) == names
    assert len(names) == 4


def test_cleanup_is_refused_while_a_command_runs(cli: Cli, shell: str) -> None:
    with running_command(cli, shell) as command:
        failure = cli.failure("cleanup", shell)
        assert (failure.exit_code, failure.code) == (5, "busy")
        assert "--force" in failure.hint
        cli("cleanup", shell, "--force")
        assert command.wait(60) == 125


def test_a_command_whose_output_is_closed_is_ended(cli: Cli, shell: str) -> None:
    with cli.start("exec", shell, "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        process.stdout = None
        process.wait(60)
    assert cli("exec", shell, "--", "jobs; pgrep -c -x yes || true") == "0"


def test_a_command_in_a_destroyed_branch_fails_with_that_reason(cli: Cli, shell: str) -> None:
    cli("fork", shell, "main", "--id", "side")
    with running_command(cli, f"{shell}:side") as command:
        cli("destroy", f"{shell}:side")
        _, err = command.communicate(timeout=60)
    assert command.returncode == 125
    assert b"was removed while the command ran" in err
