"""Limits of memory, processes and processors stop a hog, by name, in every branch; the session keeps running."""

import os
from pathlib import Path

import pytest

from support.limited import MakeLimited, all_ways_back, group, limits_in_force
from support.waiting import DEADLINE_S, wait_until
from waypoint import Branch, Session, Waypoint
from waypoint.errors import ShellDied, ShellError, UsageError
from waypoint.kernel.cgroup.controllers import MemoryLimit
from waypoint.model import Limits

MEMORY = 64 << 20
HOG = "python3 -c 'held = bytearray(256 << 20)'"
PIDS = 32


def names(result: object) -> list[str]:
    return [limit.name for limit in result.limits_reached]  # type: ignore[attr-defined]


# --- memory ----------------------------------------------------------------------------------------------


def test_a_memory_hog_is_killed_by_name_and_everything_else_keeps_running(limited: MakeLimited) -> None:
    session = limited(Limits(memory_bytes=MEMORY))
    session.exec("x=kept; export y=too; sleep 1000 & true")
    for branch in all_ways_back(session, "before"):
        assert limits_in_force(branch).memory_bytes == MEMORY
        ended = branch.exec(f"{HOG}; echo ended with $?", timeout_s=DEADLINE_S)
        assert "ended with 137" in ended.output
        (reached,) = ended.limits_reached
        assert (reached.name, reached.maximum, reached.times) == ("memory", MEMORY, 1)
        assert str(reached) == "memory limit of 64M reached: 1 process was killed"
        alive = branch.exec('echo "$x $(printenv y) $(jobs -r | wc -l)"')
        assert (alive.output, alive.limits_reached) == ("kept too 1\n", ())
        beside = branch.exec_isolated(HOG, timeout_s=DEADLINE_S)
        assert (beside.exit_code, names(beside)) == (137, ["memory"])
        assert branch.usage()["memory_kills"] == 2
        scores = branch.exec("cat /proc/$$/oom_score_adj /proc/1/oom_score_adj").output.split()
        assert int(scores[0]) > int(scores[1]), "init must be the last to be killed"


def test_a_shell_killed_by_the_memory_limit_is_reported_and_can_be_started_again(
    limited: MakeLimited,
) -> None:
    session = limited(Limits(memory_bytes=MEMORY))
    session.exec("x=kept")
    session.start_isolated("sleep 1000")
    session.snapshot("before")
    with pytest.raises(ShellDied, match=r"killed by SIGKILL; memory limit of 64M reached") as refused:
        session.exec("y=$(head -c 200M /dev/zero | tr '\\0' y)", timeout_s=DEADLINE_S)
    assert names(refused.value) == ["memory"]
    assert session.exec_isolated("pgrep -c sleep").output == "1\n"
    session.open_terminal("main")
    assert session.exec("echo fresh").output == "fresh\n"
    session.restore("before")
    assert session.exec("echo $x").output == "kept\n"


def anonymous_memory(branch: Branch) -> int:
    """Memory that cannot be reclaimed: without files and anything else that can be read again."""
    text = (group(branch, "memory") / "memory.stat").read_text()
    figures = dict(line.split() for line in text.splitlines())
    return int(figures.get("total_rss", figures.get("anon", "0")))


HOLDER = """
import signal
held = []
asked = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, asked)
open('/tmp/ready', 'w')
while True:
    if signal.sigwait(asked) == signal.SIGUSR1:  # comes before the other, if both wait
        held.append(bytes([len(held) % 256]) * (1 << 20))
    else:
        print(all(part.count(n % 256) == 1 << 20 for n, part in enumerate(held)), len(held),
              file=open('/tmp/answer', 'w'), flush=True)
"""


def ask_holder(branch: Branch) -> bytes:
    branch.exec("rm -f /tmp/answer; kill -USR2 $holder")
    wait_until(branch, "[ -s /tmp/answer ]")
    return branch.read_file("/tmp/answer")


def test_a_branch_at_its_memory_limit_can_be_saved_and_restored(limited: MakeLimited) -> None:
    session = limited(Limits(memory_bytes=MEMORY))
    session.write_file("/tmp/holder", HOLDER)
    session.exec("python3 /tmp/holder & holder=$!")
    wait_until(session, "[ -e /tmp/ready ]")
    while anonymous_memory(session.main) < MEMORY - (10 << 20):  # leave some for the shell and its programs
        session.exec("kill -USR1 $holder")
    answer = ask_holder(session.main)
    assert answer.startswith(b"True")
    for branch in all_ways_back(session, "full"):
        assert limits_in_force(branch).memory_bytes == MEMORY
        assert branch.usage()["memory_kills"] == 0
        assert ask_holder(branch) == answer
        # either the hog or the holder is killed
        assert names(branch.exec(HOG, timeout_s=DEADLINE_S)) == ["memory"]


def test_a_memory_limit_below_the_usage_kills_nothing_but_stops_growth(limited: MakeLimited) -> None:
    """This happens after a restore in which processes share less memory than before."""
    session = limited(Limits(memory_bytes=MEMORY))
    session.write_file("/tmp/holder", HOLDER)
    session.exec("python3 /tmp/holder & holder=$!")
    wait_until(session, "[ -e /tmp/ready ]")
    while anonymous_memory(session.main) < MEMORY // 2:
        session.exec("kill -USR1 $holder")
    answer = ask_holder(session.main)
    version = session.context.platform.controllers["memory"].version
    in_force = MemoryLimit(group(session.main, "memory"), version).set(16 << 20)
    assert MEMORY // 2 <= in_force < MEMORY
    assert limits_in_force(session.main).memory_bytes == in_force & -4096
    assert ask_holder(session.main) == answer
    assert session.main.usage()["memory_kills"] == 0
    assert names(session.exec(HOG, timeout_s=DEADLINE_S)) == ["memory"]


# --- processes -------------------------------------------------------------------------------------------


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except BlockingIOError:
        time.sleep(0.1)
"""


def test_a_fork_bomb_is_stopped_and_its_branch_can_be_saved_restored_and_forked(limited: MakeLimited) -> None:
    session = limited(Limits(pids=PIDS))
    session.exec("x=kept")
    session.snapshot("before")
    session.start_isolated(["python3", "-c", BOMB])
    while session.main.usage()["pids"] < PIDS:
        os.sched_yield()
    for branch in all_ways_back(session, "bombed"):
        assert limits_in_force(branch).pids == PIDS
        assert branch.usage()["pids"] == PIDS
        # The shell can run commands that need no new process.
        ended = branch.exec("echo $x; return 3", timeout_s=DEADLINE_S)
        assert (ended.output, ended.exit_code) == ("kept\n", 3)
        with pytest.raises(ShellError, match=f"pids limit of {PIDS} reached"):
            branch.exec_isolated("true")
    session.restore("before")
    many = f"import os, time; [os.fork() or time.sleep(1000) for _ in range({PIDS})]"
    ended = session.exec_isolated(["python3", "-c", many], timeout_s=DEADLINE_S)
    assert "Resource temporarily unavailable" in ended.errors
    assert list(map(str, ended.limits_reached)) == ["pids limit of 32 reached: 1 new process was refused"]


# --- processors ------------------------------------------------------------------------------------------

BURN = """
import time
began, spent = time.monotonic(), time.process_time()
while time.monotonic() < began + 1.5:
    pass
print((time.process_time() - spent) / (time.monotonic() - began))
"""


def test_a_branch_gets_only_its_share_of_the_processors(limited: MakeLimited) -> None:
    share = 0.2
    session = limited(Limits(cpus=share))
    for branch in all_ways_back(session, "before"):
        assert limits_in_force(branch).cpus == share
        assert float(branch.exec_isolated(["python3", "-c", BURN]).output) < 2 * share
        assert branch.usage()["cpu_throttled_s"] > 0
        assert branch.exec("true").limits_reached == ()  # waiting for a processor is no failure


# --- all together ----------------------------------------------------------------------------------------


@pytest.mark.quick
def test_limits_apply_to_each_branch_separately_and_show_in_its_usage(limited: MakeLimited) -> None:
    asked = Limits(memory_bytes=MEMORY, cpus=1, pids=PIDS, disk_bytes=64 << 20)
    session = limited(asked)
    for branch in all_ways_back(session, "before"):
        in_force = limits_in_force(branch)
        assert (in_force.memory_bytes, in_force.cpus, in_force.pids) == (MEMORY, 1, PIDS)
        assert in_force.disk_bytes is not None
        usage = branch.usage()
        assert 0 < usage["memory_bytes"] < MEMORY
        assert 2 <= usage["pids"] <= PIDS
        assert 0 <= usage["disk_bytes"] < 8 << 20
        assert usage["cpu_s"] > 0
    _, fork = session.branches()
    assert names(fork.exec(HOG, timeout_s=DEADLINE_S)) == ["memory"]
    assert session.main.usage()["memory_kills"] == 0


def test_a_session_without_limits_has_no_trace_of_limits(session: Session) -> None:
    assert limits_in_force(session.main) == Limits()
    assert set(session.main.usage()) == {"cpu_s"}
    assert not Path(session.context.layout.state_dir, "limits", session.main.record.incarnation).exists()


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        (Limits(memory_bytes=0), "16M"),
        (Limits(memory_bytes=-1), "16M"),
        (Limits(memory_bytes=1 << 20), "16M"),
        (Limits(cpus=0), "0.01"),
        (Limits(cpus=-0.5), "0.01"),
        (Limits(cpus=float("nan")), "0.01"),
        (Limits(cpus=float("inf")), "0.01"),
        (Limits(cpus=1e6), "0.01"),
        (Limits(pids=0), "8"),
        (Limits(pids=3), "8"),
        (Limits(pids=1 << 40), "8"),
        (Limits(disk_bytes=0), "16M"),
        (Limits(disk_bytes=4096), "16M"),
    ],
)
def test_an_invalid_limit_is_refused_with_the_smallest_valid_one(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, limits: Limits, least: str
) -> None:
    with pytest.raises(UsageError, match="limit of") as refused:
        waypoint.create(workspace, limits=limits)
    assert refused.value.hint.startswith(f"at least {least}, at most ")
    assert waypoint.sessions() == []


def test_the_smallest_limits_are_enough_for_a_shell_and_a_restore(limited: MakeLimited) -> None:
    session = limited(Limits(memory_bytes=16 << 20, cpus=0.05, pids=8, disk_bytes=16 << 20))
    for branch in all_ways_back(session, "before"):
        ended = branch.exec("x=1; ls / | sort | wc -l >/tmp/n; cat /tmp/n", timeout_s=DEADLINE_S)
        assert (ended.exit_code, ended.limits_reached) == (0, ())
