"""Whatever goes wrong in a terminal or with its viewers, the branch answers the next request."""

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from support.command_line import COMMAND, Cli
from support.keyboard import wait_until_shown
from support.limited import MakeLimited
from support.waiting import DEADLINE_S, delay_interrupt_until, wait_for
from support.window import Window
from waypoint import Branch, Session
from waypoint.errors import Busy, CommandTimedOut, OutputLimitExceeded, ShellDied, ShellError, UsageError
from waypoint.model import Limits
from waypoint.session.commands import following

COMMAND_MAX = 1 << 20
RING = 1 << 20  # what init keeps of the output of a terminal, and of each of the two of an isolated job
KEPT_JOBS = 40  # isolated jobs whose output init can keep
SLACK = 1 << 20  # for everything else in init: tables, buffers of connections in use
PIDS_MAX = 64


@pytest.fixture
def cli(state_dir: Path, tmp_path: Path) -> Cli:
    return Cli(state_dir, tmp_path)


def assert_answers(branch: Branch | Session) -> None:
    """Check that the shell runs a command and reports its exact end, and that an isolated command does too."""
    ended = branch.exec("echo answers; (exit 3)", timeout_s=DEADLINE_S)
    assert (ended.output, ended.exit_code) == ("answers\n", 3)
    assert_isolated_command_answers(branch)


def assert_isolated_command_answers(branch: Branch | Session) -> None:
    ended = branch.exec_isolated("cat; echo answers; exit 4", stdin=b"read; ", timeout_s=DEADLINE_S)
    assert (ended.output, ended.exit_code) == ("read; answers\n", 4)


def assert_shell_has_ended(branch: Branch | Session) -> None:
    """Check that this is reported, that a new shell can be started, and that the rest of the branch still works."""
    assert_isolated_command_answers(branch)
    with pytest.raises(ShellDied):
        branch.exec("true", timeout_s=DEADLINE_S)
    branch.open_terminal("main")
    assert_answers(branch)


def return_both_ways(session: Session) -> list[Branch]:
    """Save this point and return to it in both ways."""
    point = session.snapshot()
    session.restore(point)
    return [session.main, *session.fork(point)]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        os.sched_yield()


# --- what a command does to its shell --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("exit 3", "exited with status 3"),
        ("exec sleep 0.01", "exited with status 0"),
        ("exec sh -c 'exit 200'", "exited with status 200"),
        ("kill -9 $$", "was killed by SIGKILL"),
        ("kill -HUP $$", "was killed by SIGHUP"),
    ],
)
def test_a_command_that_ends_its_shell_is_reported_and_a_new_shell_can_be_started(
    session: Session, command: str, how: str
) -> None:
    with pytest.raises(ShellDied, match=how) as died:
        session.exec(f"echo last words; {command}", timeout_s=DEADLINE_S)
    assert died.value.output.startswith(b"last words\n")
    for branch in return_both_ways(session):
        assert_shell_has_ended(branch)


def test_a_program_that_replaced_the_shell_is_ended_by_a_timeout_and_the_shell_is_dead(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_interrupt_until(monkeypatch, lambda: session.exec_isolated("pgrep -x sleep").exit_code == 0)
    with pytest.raises(ShellDied, match="was killed by SIGINT"):
        session.exec("exec sleep 1000", timeout_s=1.0)
    assert_shell_has_ended(session)


@pytest.mark.parametrize("command", ["exec <&-", "exec </dev/null", "exec 0<&- 1>&- 2>&-"])
def test_a_shell_that_closes_its_own_input_ends(session: Session, command: str) -> None:
    assert session.exec(command, timeout_s=DEADLINE_S).exit_code == 0
    session.wait_for(exit=True, timeout_s=DEADLINE_S)
    until(lambda: session.terminals()[0].shell_pid == 0, "the shell has not ended")
    for branch in return_both_ways(session):
        assert_shell_has_ended(branch)


def test_a_shell_that_closes_its_own_output_still_reports_how_commands_end(session: Session) -> None:
    session.exec("exec >&- 2>&-", timeout_s=DEADLINE_S)
    for branch in return_both_ways(session):
        ended = branch.exec("echo unheard; (exit 3)", timeout_s=DEADLINE_S)
        assert (ended.output, ended.exit_code) == ("", 3)
        branch.exec("exec >/dev/tty 2>&1", timeout_s=DEADLINE_S)
        assert_answers(branch)


CLOSES = "import os, signal; os.closerange(0, 3); open('/tmp/closed', 'w'); signal.pause()"


@pytest.mark.parametrize(
    "program", [CLOSES, f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCNOTTY); {CLOSES}"]
)
def test_a_program_that_closed_its_terminal_can_be_ended_also_after_a_restore(
    session: Session, program: str
) -> None:
    job = session.start(f'python3 -c "{program}"')
    session.exec_isolated("until [ -e /tmp/closed ]; do sleep 0.02; done", timeout_s=DEADLINE_S)
    for branch in return_both_ways(session):
        assert_isolated_command_answers(branch)
        branch.job(job.number).signal(signal.SIGTERM)
        assert branch.job(job.number).wait(DEADLINE_S).exit_code == 143
        assert_answers(branch)


@pytest.mark.parametrize("mode", ["raw", "raw -echo", "-isig -icanon -echo min 1 time 0", "-opost -onlcr"])
def test_a_terminal_left_in_another_mode_runs_and_interrupts_commands(session: Session, mode: str) -> None:
    assert session.exec(f"stty {mode}", timeout_s=DEADLINE_S).exit_code == 0
    for branch in return_both_ways(session):
        assert_answers(branch)
        with pytest.raises(CommandTimedOut, match=r"timed out after 0\.1 s$"):
            branch.exec("sleep 1000", timeout_s=0.1)
        assert_answers(branch)
        branch.exec("stty sane", timeout_s=DEADLINE_S)
        assert "icanon" in branch.exec("stty -a", timeout_s=DEADLINE_S).output.split()


# --- what goes in and comes out --------------------------------------------------------------------------


def test_a_command_line_of_1_mib_runs_and_a_longer_one_is_refused(session: Session) -> None:
    text = "x='" + "m" * (COMMAND_MAX - 20) + "'; echo ${#x};(exit 9)"
    text = text.replace("m", "", len(text) - COMMAND_MAX)
    assert len(text) == COMMAND_MAX
    ended = session.exec(text, timeout_s=DEADLINE_S)
    assert (ended.output, ended.exit_code) == (f"{text.count('m')}\n", 9)
    with pytest.raises(UsageError, match=f"{COMMAND_MAX + 1} bytes"):
        session.exec(text + " ")
    with pytest.raises(ShellError, match="Argument list too long"):
        session.exec_isolated("#" * (1 << 17))
    for branch in return_both_ways(session):
        assert branch.exec("echo ${#x}", timeout_s=DEADLINE_S).output == f"{text.count('m')}\n"
        assert_answers(branch)


def test_a_binary_dump_arrives_completely_and_leaves_the_terminal_usable(
    session: Session, workspace: Path
) -> None:
    data = bytes(range(256)) * 64 + os.urandom(2_000_000) + b"\x1b[?1049h\x1b]0;\x9b\x90\x0e"
    (workspace / "data").write_bytes(data)
    assert session.exec(f"cat {workspace}/data", timeout_s=DEADLINE_S).output_bytes == data
    for branch in return_both_ways(session):
        assert_answers(branch)
        screen = branch.screen()
        assert (screen.rows, screen.columns) == (40, 120)
        branch.send("printf '\\033c\\033(BSHO''WN\\n'", "Enter")
        branch.wait_for(text="^SHOWN$", timeout_s=DEADLINE_S)
        branch.wait_for(exit=True, timeout_s=DEADLINE_S)


def test_invalid_utf_8_goes_in_and_comes_out_unchanged(session: Session) -> None:
    text = b"printf '<%s>' '\xff\xc3\x28\xed\xa0\x80\xfe'; (exit 3)"
    ended = session.exec(text.decode(errors="surrogateescape"), timeout_s=DEADLINE_S)
    assert (ended.output_bytes, ended.exit_code) == (b"<\xff\xc3\x28\xed\xa0\x80\xfe>", 3)
    beside = session.exec_isolated(["printf", "%s", "\udcff\udcc3("], timeout_s=DEADLINE_S)
    assert beside.output_bytes == b"\xff\xc3("
    with pytest.raises(UsageError, match="not text"):
        session.exec("echo \ud800")
    session.screen()
    for branch in return_both_ways(session):
        assert_answers(branch)


@pytest.mark.parametrize("beside", [False, True])
def test_a_slow_reader_of_a_flood_delays_nobody_else_and_misses_nothing(
    session: Session, beside: bool
) -> None:
    run = session.exec_isolated if beside else session.exec
    chunks: list[bytes] = []
    stuck, go_on = threading.Event(), threading.Event()

    def read_slowly(data: bytes) -> None:
        chunks.append(data)
        stuck.set()
        assert go_on.wait(DEADLINE_S)

    with ThreadPoolExecutor(1) as pool:
        flood = pool.submit(run, "yes", on_output=read_slowly, output_limit=5 * RING)
        assert stuck.wait(DEADLINE_S)
        assert_isolated_command_answers(session)
        point = session.snapshot()  # during the flood, while its reader is stuck
        assert_isolated_command_answers(session)
        go_on.set()
        with pytest.raises(OutputLimitExceeded):
            flood.result(DEADLINE_S)
    assert b"".join(chunks) == b"y\n" * (5 * RING // 2)
    assert_answers(session)
    session.restore(point)
    for branch in (session.main, *session.fork(point)):
        (status,) = [status for status in branch.jobs() if status.ended is None]
        assert_isolated_command_answers(branch)
        branch.job(status.job).signal(signal.SIGINT)
        assert branch.job(status.job).wait(DEADLINE_S).exit_code == 130
        assert_answers(branch)


# --- time limits -----------------------------------------------------------------------------------------


def test_a_timeout_always_ends_a_loop_of_short_programs(session: Session) -> None:
    """Often a single interrupt hits a program that is just ending, and the loop continues."""
    names = [f"t{number}" for number in range(4)]
    for name in names:
        session.open_terminal(name)

    def run_out_of_time(name: str) -> None:
        session.exec("x=kept", terminal=name)
        for _ in range(5):
            with pytest.raises(CommandTimedOut, match=r"timed out after 0\.1 s$"):
                session.exec("while :; do /bin/true; done", terminal=name, timeout_s=0.1)
            again = session.exec("echo $? $x", terminal=name, timeout_s=DEADLINE_S)
            assert again.output == "130 kept\n"

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(run_out_of_time, names))


def test_a_program_has_time_to_clean_up_before_it_is_interrupted_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert following.GRACE_S > 1.0
    # on a busy machine, a sleep of half a second may take seconds
    monkeypatch.setattr(following, "GRACE_S", DEADLINE_S)
    delay_interrupt_until(monkeypatch, (session.directory / "tmp/begun").exists)
    program = (
        "trap 'echo told; sleep 0.5; echo ended; exit 5' INT; : >/tmp/begun; while :; do sleep 0.01; done"
    )
    with pytest.raises(CommandTimedOut) as stopped:
        session.exec(f'sh -c "{program}"', timeout_s=1.0)
    assert stopped.value.output.split() == [b"told", b"ended"]
    assert session.exec("echo $?", timeout_s=DEADLINE_S).output == "5\n"


# --- clients that vanish ---------------------------------------------------------------------------------


def clients(session: Session) -> int:
    """How many connections init has open, without the socket on which it listens."""
    sockets = -1
    for entry in os.scandir(f"/proc/{session.main.record.init_pid}/fd"):
        try:
            sockets += os.readlink(entry.path).startswith("socket:")
        except FileNotFoundError:
            continue
    return sockets


def wait_until_disconnected(session: Session) -> None:
    until(lambda: clients(session) == 0, "init still holds a connection")


@contextmanager
def vanishing(
    session: Session, cli: Cli, *words: str, stdin: BinaryIO | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the block while the command line is connected; then kill it, and wait until init drops the connection."""
    wait_until_disconnected(session)
    command = [os.fspath(COMMAND), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=cli.env, stdin=stdin, stdout=pipe, stderr=pipe) as client:
        try:
            until(lambda: clients(session) > 0, f"{words} is not connected")
            yield client
        finally:
            client.kill()
        client.communicate(timeout=DEADLINE_S)
    assert client.returncode == -signal.SIGKILL
    wait_until_disconnected(session)


def test_the_next_command_waits_for_one_whose_client_vanished(session: Session, cli: Cli) -> None:
    with vanishing(
        session, cli, "exec", session.id, "--", "until [ -e /tmp/go ]; do sleep 0.02; done; x=done"
    ):
        until(lambda: len(session.jobs()) == 1, "the command has not started")
    with pytest.raises(Busy, match="busy with job 1"):
        session.exec("true", wait=False)
    with pytest.raises(Busy, match="busy with job 1"):
        session.exec("true", timeout_s=0.1)
    for branch in return_both_ways(session):
        with pytest.raises(Busy, match="busy with job 1"):
            branch.exec("true", wait=False)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(branch.exec, "echo $x", timeout_s=DEADLINE_S)
            branch.exec_isolated("touch /tmp/go")
            assert waiting.result(DEADLINE_S).output == "done\n"
        assert_answers(branch)


def test_an_isolated_command_whose_client_vanished_gets_the_end_of_its_input(
    session: Session, cli: Cli
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as keyboard:
        keyboard.write(b"begun\n")
        words = ("exec", session.id, "--isolated", "--", "tee /tmp/got")
        with vanishing(session, cli, *words, stdin=stdin) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"begun\n"
            (status,) = [status for status in session.jobs() if status.ended is None]
    assert_answers(session)
    assert session.job(status.job).wait(DEADLINE_S).exit_code == 0
    assert session.exec("cat /tmp/got").output == "begun\n"


def test_a_flood_continues_when_its_follower_vanished(session: Session, cli: Cli) -> None:
    flood = "until [ -e /tmp/end ]; do seq 10000; done; (exit 6)"
    jobs = [session.start(flood), session.start_isolated(flood)]
    for job in jobs:
        with vanishing(session, cli, "output", session.id, str(job.number), "--follow") as client:
            assert client.stdout is not None
            assert client.stdout.read(1)  # from here on nobody reads: it lags, and holds up the flood
            assert_isolated_command_answers(session)
    session.exec_isolated("touch /tmp/end")
    for job in jobs:
        assert job.wait(DEADLINE_S).exit_code == 6
    assert_answers(session)


def test_the_flood_of_a_client_that_vanished_can_be_interrupted(session: Session, cli: Cli) -> None:
    with vanishing(session, cli, "exec", session.id, "--", "yes") as client:
        assert client.stdout is not None
        assert client.stdout.read(2) == b"y\n"
        assert_isolated_command_answers(session)
    session.interrupt()
    assert_answers(session)


def test_a_client_that_only_waits_can_vanish(session: Session, cli: Cli) -> None:
    with vanishing(session, cli, "wait-for", session.id, "--text", "never"):
        assert_answers(session)
    assert_answers(session)
    job = session.start("until [ -e /tmp/go ]; do sleep 0.02; done")
    with vanishing(session, cli, "wait", session.id, str(job.number)):
        assert_isolated_command_answers(session)
    session.exec_isolated("touch /tmp/go")
    assert_answers(session)


def test_an_attached_window_can_vanish(session: Session, cli: Cli) -> None:
    command = [str(COMMAND), "--state-dir", str(cli.state_dir), "attach", session.id]
    with Window(command) as window:
        window.wait_for(r"C-\] detaches")
        window.type("yes\r")
        window.wait_for(r"^y$")
        # The window is closed during the flood; nobody reads it any more.
    wait_until_disconnected(session)
    session.interrupt()
    session.wait_for(exit=True, timeout_s=DEADLINE_S)
    assert_answers(session)


# --- a fork bomb -----------------------------------------------------------------------------------------


def test_under_a_limit_a_branch_with_a_fork_bomb_answers_and_can_be_restored(
    limited: MakeLimited, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = limited(Limits(pids=PIDS_MAX))
    session.exec("x=kept")
    point = session.snapshot()
    delay_interrupt_until(monkeypatch, lambda: session.main.usage()["pids_refused"] > 0)
    with pytest.raises(CommandTimedOut, match=f"pids limit of {PIDS_MAX} reached"):
        session.exec(":(){ :|:& };:; while :; do :; done", timeout_s=1.0)
    until(lambda: session.main.usage()["pids"] >= PIDS_MAX // 2, "it was no bomb")
    # The shell can run commands that need no new process.
    ended = session.exec("echo $x; return 3", timeout_s=DEADLINE_S)
    assert "kept" in ended.output  # among the complaints of the bomb's shells on the same terminal
    assert ended.exit_code == 3
    assert [terminal.name for terminal in session.terminals()] == ["main"]
    session.restore(point)
    assert session.exec("echo $x; jobs").output == "kept\n"
    assert_answers(session)
    assert session.exec("pgrep -c bash", timeout_s=DEADLINE_S).output == "1\n"


# --- the memory of init ----------------------------------------------------------------------------------


def memory_of_init(branch: Branch) -> int:
    """The resident anonymous memory of init, which every checkpoint must write."""
    text = Path(f"/proc/{branch.record.init_pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Anonymous:"))


FLOOD = f"head -c {4 * RING} /dev/zero | tee /dev/stderr"


def test_the_memory_of_init_is_limited_by_its_ring_buffers_and_freed(session: Session) -> None:
    main = session.main
    empty = memory_of_init(main)
    assert empty < SLACK

    # A follower reads everything, so nothing is kept.
    assert len(session.exec_isolated(FLOOD).error_bytes) == 4 * RING
    wait_for(lambda: memory_of_init(main) < empty + SLACK)  # when init sees that the follower has gone

    for name in itertools.chain(["main"], (f"t{number}" for number in range(3))):
        if name != "main":
            session.open_terminal(name)
        session.exec(FLOOD, terminal=name, timeout_s=DEADLINE_S)
    with_terminals = memory_of_init(main)
    assert 4 * RING <= with_terminals < empty + 4 * RING + SLACK

    for _ in range(KEPT_JOBS + 10):  # more than it can keep
        session.start_isolated(FLOOD).wait(DEADLINE_S)
    full = memory_of_init(main)
    assert full < with_terminals + KEPT_JOBS * 2 * RING + SLACK
    assert full > with_terminals + 8 * 2 * RING  # at least the last 8 are kept

    for branch in return_both_ways(session):
        assert memory_of_init(branch) < with_terminals + KEPT_JOBS * 2 * RING + SLACK
        for _ in range(KEPT_JOBS):  # they replace the kept jobs
            branch.start_isolated("true").wait(DEADLINE_S)
        assert memory_of_init(branch) < with_terminals + SLACK
        for number in range(3):
            branch.close_terminal(f"t{number}")
        assert memory_of_init(branch) < empty + RING + SLACK
        assert_answers(branch)


def test_stuck_readers_cost_init_no_more_than_its_ring_buffers(session: Session, cli: Cli) -> None:
    empty = memory_of_init(session.main)
    jobs = [session.start("yes"), *(session.start_isolated("yes") for _ in range(3))]
    clients = [cli.start("output", session.id, str(job.number), "--follow") for job in jobs for _ in range(2)]
    try:
        for client in clients:
            assert client.stdout is not None
            client.stdout.read(1)  # it follows; from here on nobody reads
        wait_until_shown(session.main, "y\r\ny")
        buffers = len(clients) * (256 << 10)
        assert memory_of_init(session.main) < empty + 4 * RING + buffers + SLACK
        assert_isolated_command_answers(session)
    finally:
        for client in clients:
            client.kill()
            client.communicate(timeout=DEADLINE_S)
    for job in jobs:
        job.signal(signal.SIGINT)
        assert job.wait(DEADLINE_S).exit_code == 130
    assert_answers(session)
