"""A branch saves itself: ``waypoint-here snapshot`` inside returns in the branch itself, and again in every copy."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli
from support.waiting import DEADLINE_S, wait_for
from waypoint.kernel.in_use import lock_holders
from waypoint.store.layout import Layout
from waypoint.store.lock import attendant_lock


@pytest.fixture
def here(cli: Cli, workspace: Path) -> Iterator[str]:
    """The id of a session that may save itself; none of its background processes may be left after the test."""
    session = cli("init", os.fspath(workspace), "--allow-self", "--quiet").partition(",")[0]
    yield session
    cli("cleanup", session, "--force")
    # one that lost the race for the lock may still be about to end
    wait_for(lambda: attendants(session) == [])


def attendants(session: str) -> list[int]:
    """The background processes of a session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:  # it has ended meanwhile
            continue
        if b"waypoint.session.background.attendant" in words and session.encode() in words and not ended:
            found.append(int(process.name))
    return found


def holders(cli: Cli, session: str) -> list[int]:
    """The processes that hold the lock of the session's attendant."""
    return lock_holders(Layout(cli.state_dir).lock(attendant_lock(session)))


def wait_until_one_attends(cli: Cli, session: str) -> int:
    deadline = time.monotonic() + DEADLINE_S
    while len(found := attendants(session)) != 1 or holders(cli, session) != found:
        assert time.monotonic() < deadline, found
        os.sched_yield()
    return found[0]


def kill(cli: Cli, session: str, attendant: int) -> None:
    """Kill the attendant and wait for its lock: while a dying one holds the lock, no other is started."""
    os.kill(attendant, signal.SIGKILL)
    wait_for(lambda: holders(cli, session) == [])


def checkpoints(cli: Cli, session: str) -> dict[str, str]:
    """The names of the checkpoints, each with the branch it was made from."""
    return {point["id"]: point["branch"] for point in cli.document("list", session)["checkpoints"]}


def finish(cli: Cli, target: str, job: str) -> tuple[int, str]:
    """Wait for a job that must end; return its exit code and output."""
    code = cli.run("wait", target, job, "--timeout", str(DEADLINE_S)).exit_code
    return code, cli("output", target, job)


def test_the_command_returns_again_in_every_copy_of_its_checkpoint(cli: Cli, here: str) -> None:
    ask = 'x=before; waypoint-here snapshot ready; echo "code $? $x"; x=after'
    job = cli("exec", here, "--detach", "--quiet", "--", ask)
    assert finish(cli, here, job) == (0, "saved as checkpoint 'ready'\ncode 0 before")
    assert checkpoints(cli, here) == {"ready": "main"}
    assert cli("exec", here, "--", "echo $x") == "after"

    cli("restore", here, "ready")
    forks = cli("fork", here, "ready", "--n", "2", "--quiet").splitlines()
    for branch in ("main", *forks):
        told = f"continued from checkpoint 'ready' in branch '{branch}'\ncode 0 before"
        assert finish(cli, f"{here}:{branch}", job) == (0, told)
        assert cli("exec", f"{here}:{branch}", "--", "echo $x") == "after"


def test_a_script_saves_itself_at_each_step_and_can_continue_from_any(cli: Cli, here: str) -> None:
    script = "for i in 1 2 3; do echo step $i; waypoint-here snapshot step-$i >>/tmp/told || exit; done"
    cli(
        "exec",
        here,
        "--isolated",
        "--",
        f"printf '%s\\n' '#!/bin/sh' '{script}' >/tmp/steps; chmod +x /tmp/steps",
    )
    assert cli("exec", here, "--isolated", "--", "/tmp/steps") == "step 1\nstep 2\nstep 3"
    assert checkpoints(cli, here) == {"step-1": "main", "step-2": "main", "step-3": "main"}
    # A fork from the middle would find its next names taken, as a fresh run would.
    cli("fork", here, "step-3", "--id", "last")
    target = f"{here}:last"
    (job,) = cli("jobs", target, "--quiet").split()[-1:]
    assert cli.run("wait", target, job, "--timeout", str(DEADLINE_S)).exit_code == 0
    assert cli("exec", target, "--", "cat /tmp/told").splitlines() == [
        "saved as checkpoint 'step-1'",
        "saved as checkpoint 'step-2'",
        "continued from checkpoint 'step-3' in branch 'last'",
    ]


def test_without_a_name_one_is_chosen_and_each_failure_has_its_exit_code(cli: Cli, here: str) -> None:
    assert cli("exec", here, "--", "waypoint-here snapshot") == "saved as checkpoint 'checkpoint-1'"
    taken = cli.run("exec", here, "--isolated", "--", "waypoint-here", "snapshot", "checkpoint-1")
    assert (taken.exit_code, taken.out) == (5, b"")
    assert "'checkpoint-1' already exists" in taken.err
    other = cli.run(
        "exec", here, "--isolated", "--user", "nobody", "--", "waypoint-here snapshot checkpoint-1"
    )
    assert other.exit_code == 5  # requests of other users are answered too
    for words in ("", "snap", "snapshot a b", "snapshot --name", "snapshot 'a b'", f"snapshot {'n' * 65}"):
        wrong = cli.run("exec", here, "--isolated", "--", f"waypoint-here {words}")
        assert (wrong.exit_code, wrong.out) == (2, b""), words
        assert wrong.err
    assert cli("exec", here, "--isolated", "--", "waypoint-here --help").startswith("usage: waypoint-here")
    assert checkpoints(cli, here) == {"checkpoint-1": "main"}


def test_another_user_may_ask_for_a_snapshot_too(cli: Cli, here: str) -> None:
    options = ("--isolated", "--user", "nobody")
    assert (
        cli("exec", here, *options, "--", "waypoint-here snapshot theirs") == "saved as checkpoint 'theirs'"
    )


def test_without_allow_self_the_command_says_how_to_allow_it(cli: Cli, shell: str) -> None:
    refused = cli.run("exec", shell, "--isolated", "--", "waypoint-here snapshot no")
    assert (refused.exit_code, refused.out) == (4, b"")
    assert "waypoint init --allow-self" in refused.err
    assert attendants(shell) == []
    assert checkpoints(cli, shell) == {}


def test_two_branches_can_save_themselves_at_once(cli: Cli, here: str) -> None:
    cli("fork", here, "main", "--id", "side")
    jobs = {
        branch: cli(
            *("exec", f"{here}:{branch}", "--detach", "--quiet", "--isolated", "--"),
            f"waypoint-here snapshot of-{branch}",
        )
        for branch in ("main", "side")
    }
    for branch, job in jobs.items():
        assert finish(cli, f"{here}:{branch}", job) == (0, f"saved as checkpoint 'of-{branch}'")
    made = checkpoints(cli, here)
    assert (made["of-main"], made["of-side"]) == ("main", "side")


def test_there_is_one_attendant_and_a_killed_one_is_started_again(cli: Cli, here: str) -> None:
    first = wait_until_one_attends(cli, here)
    cli("snapshot", here, "start")
    cli("fork", here, "start", "--id", "side")
    assert wait_until_one_attends(cli, here) == first

    kill(cli, here, first)
    asked = cli("exec", here, "--detach", "--quiet", "--isolated", "--", "waypoint-here snapshot asked")
    # there is no attendant, so it waits
    assert cli.run("wait", here, asked, "--timeout", "0.1").exit_code == 124
    cli("restore", f"{here}:side", "start")
    second = wait_until_one_attends(cli, here)
    assert finish(cli, here, asked) == (0, "saved as checkpoint 'asked'")

    kill(cli, here, second)
    cli("fork", here, "start", "--id", "third")
    wait_until_one_attends(cli, here)
    assert cli("exec", f"{here}:third", "--", "waypoint-here snapshot more") == "saved as checkpoint 'more'"


def test_the_attendant_ends_with_the_session_even_during_a_request(cli: Cli, workspace: Path) -> None:
    session = cli("init", os.fspath(workspace), "--allow-self", "--quiet").partition(",")[0]
    wait_until_one_attends(cli, session)
    cli("exec", session, "--detach", "--isolated", "--", "while waypoint-here snapshot; do :; done")
    cli("cleanup", session, "--force")
    assert attendants(session) == []
    assert cli.document("list")["sessions"] == []
