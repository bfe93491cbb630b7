"""Terminals as agents use them: type, look, wait; several of them; the same after a restore and in a fork."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import DEADLINE_S, wait_until
from waypoint import Branch, Session
from waypoint.errors import NotFound, ShellDied, ShellError, UsageError, WaitTimedOut
from waypoint.shell.rendering import render_text


def text_of(branch: Branch | Session, terminal: str = "main") -> str:
    return render_text(branch.screen(terminal=terminal))


def return_both_ways(session: Session) -> list[Branch]:
    """Save this point and return to it in both ways."""
    point = session.snapshot()
    session.restore(point)
    return [session.main, *session.fork(point)]


def test_a_python_prompt_can_be_typed_into_in_every_branch(session: Session) -> None:
    session.send("python3 -q", "Enter")
    session.wait_for(text=r"^>>> $", timeout_s=DEADLINE_S)
    session.send("answer = 6 * 7", "Enter", "print(ans")
    session.wait_for(text=r"print\(ans$", timeout_s=DEADLINE_S)
    for branch in return_both_ways(session):
        assert text_of(branch).rstrip().endswith(">>> print(ans")
        branch.send("wer)", "Enter")
        branch.wait_for(text=r"^42$", timeout_s=DEADLINE_S)


def test_vim_keeps_an_unfinished_edit_in_every_branch(session: Session) -> None:
    session.exec("export TERM=xterm-256color")
    session.send("vim -u NONE -N /tmp/note", "Enter")
    session.wait_for(text=r'"/tmp/note" \[New', timeout_s=DEADLINE_S)
    session.send("i", "first line", "Enter", "second")
    session.wait_for(text=r"^second", timeout_s=DEADLINE_S)
    screen = session.wait_for(idle_ms=300, timeout_s=DEADLINE_S)  # the cursor appears last
    assert screen.is_alternate
    for number, branch in enumerate(return_both_ways(session)):
        assert branch.screen() == screen
        branch.send(f" line of {number}", "Escape", ":wq", "Enter")
        branch.wait_for(exit=True, timeout_s=DEADLINE_S)
        assert branch.exec("cat /tmp/note").output == f"first line\nsecond line of {number}\n"


def test_top_keeps_drawing_in_every_branch(session: Session) -> None:
    session.send("top -d 0.2", "Enter")
    session.wait_for(text=r"^top - ", timeout_s=DEADLINE_S)
    for branch in return_both_ways(session):
        branch.wait_for(text=r"PID\s+USER", timeout_s=DEADLINE_S)
        branch.send("q")
        branch.wait_for(exit=True, timeout_s=DEADLINE_S)


def test_each_branch_can_answer_a_prompt_differently(session: Session) -> None:
    session.send("read -p 'Really? ' answer; echo \"<$answer>\"", "Enter")
    session.wait_for(text=r"^Really\? $", timeout_s=DEADLINE_S)
    for number, branch in enumerate(return_both_ways(session)):
        branch.send(f"yes {number}", "Enter")
        branch.wait_for(text=f"^<yes {number}>$", timeout_s=DEADLINE_S)


def test_keys_follow_the_mode_of_the_program(session: Session) -> None:
    session.send(
        "printf '\\033[?1hREA''DY\\n'; head -c 3 | od -An -c; printf '\\033[?1l'; head -c 3 | od -An -c",
        "Enter",
    )
    session.wait_for(text=r"^READY$", timeout_s=DEADLINE_S)
    session.send("Up", "Enter")
    session.wait_for(text=r"033\s+O\s+A", timeout_s=DEADLINE_S)


def test_wait_for_finds_silence_and_scrolled_text_or_times_out(session: Session) -> None:
    session.send("seq 1000", "Enter")
    session.wait_for(text=r"^500$", timeout_s=DEADLINE_S)
    session.wait_for(idle_ms=100, timeout_s=DEADLINE_S)
    with pytest.raises(WaitTimedOut, match="nothing matched 'never'"):
        session.wait_for(text="never", timeout_s=0.1)
    with pytest.raises(UsageError, match="not a regular expression"):
        session.wait_for(text="(")
    with pytest.raises(UsageError, match="one of"):
        session.wait_for(text="x", exit=True)


@pytest.mark.quick
def test_terminals_are_independent_and_all_are_saved(session: Session) -> None:
    session.open_terminal("side", size=(10, 50), cwd="/usr", env={"V": "there"})
    session.exec("x=main")
    session.exec("x=side", terminal="side")
    session.send("sleep 1000", "Enter", terminal="side")
    wait_until(session, "pgrep -x sleep >/dev/null")
    point = session.snapshot()
    session.close_terminal("side")
    assert [terminal.name for terminal in session.terminals()] == ["main"]
    session.restore(point)
    for branch in (session.main, *session.fork(point)):
        assert {(t.name, t.rows, t.columns) for t in branch.terminals()} == {
            ("main", 40, 120),
            ("side", 10, 50),
        }
        branch.interrupt(terminal="side")
        assert branch.exec("echo $x $V $PWD; stty size", terminal="side").output == "side there /usr\n10 50\n"
        assert branch.exec("echo $x").output == "main\n"


def test_programs_get_a_resize_and_it_survives_a_restore(session: Session) -> None:
    session.exec("trap 'stty size >/tmp/size' WINCH")
    session.resize((20, 60))
    assert session.exec("sleep 0.01; cat /tmp/size").output == "20 60\n"
    for branch in return_both_ways(session):
        assert branch.exec("stty size").output == "20 60\n"
        assert (branch.screen().rows, branch.screen().columns) == (20, 60)


def test_a_dead_shell_is_reported_and_can_be_started_again(session: Session) -> None:
    with pytest.raises(ShellDied, match="exited with status 3"):
        session.exec("exit 3")
    with pytest.raises(ShellDied, match="has ended"):
        session.exec("true")
    session.open_terminal("main")
    assert session.exec("echo fresh").output == "fresh\n"


def test_unknown_terminals_and_too_many_are_refused_by_name(session: Session) -> None:
    for act in (
        lambda: session.screen(terminal="none"),
        lambda: session.send("x", terminal="none"),
        lambda: session.close_terminal("none"),
    ):
        with pytest.raises(NotFound, match="no terminal named 'none'"):
            act()
    with pytest.raises(ShellError, match="already open"):
        session.open_terminal("main")
    for number in range(7):
        session.open_terminal(f"t{number}")
    with pytest.raises(ShellError, match="8 terminals"):
        session.open_terminal("t8")


def first_line(pieces: Iterator[bytes]) -> bytes:
    """Read one line: a terminal may deliver the end of a line after the line."""
    line = b""
    while not line.endswith(b"\n"):
        line += next(pieces)
    return line


def test_output_is_streamed_while_the_command_runs(session: Session) -> None:
    with session.stream("echo first; until [ -e /tmp/go ]; do sleep 0.02; done; echo second") as stream:
        pieces = iter(stream)
        assert first_line(pieces) == b"first\n"
        session.exec_isolated("touch /tmp/go")
        assert b"".join(pieces) == b"second\n"
    assert stream.result.exit_code == 0


def test_leaving_a_stream_early_ends_the_command(session: Session) -> None:
    with session.stream("x=kept; echo begun; sleep 1000") as stream:
        assert first_line(iter(stream)) == b"begun\n"
        # If an interrupt arrives while bash starts a program, bash can forget that program.
        session.exec_isolated("until pgrep -x sleep; do :; done", timeout_s=DEADLINE_S)
    assert session.exec("echo $x").output == "kept\n"


@pytest.mark.parametrize("command", ["less /etc/services", "cat /etc/services | less"])
def test_a_pager_that_reads_keys_from_the_controlling_terminal_keeps_running(
    session: Session, command: str
) -> None:
    session.send(command, "Enter")
    session.wait_for(text=r"^(:|/etc/services)", timeout_s=DEADLINE_S)
    before = text_of(session)
    for branch in return_both_ways(session):
        assert text_of(branch) == before
        branch.send("G")
        branch.wait_for(text=r"\(END\)", timeout_s=DEADLINE_S)
        branch.send("q")
        branch.wait_for(exit=True, timeout_s=DEADLINE_S)
        assert branch.exec("echo $(tty) >/dev/tty").output == "/dev/pts/0\n"


def test_descriptors_of_the_controlling_terminal_are_saved_in_any_process(session: Session) -> None:
    session.exec("mkfifo /tmp/fifo; exec 9<>/dev/tty 7<>/tmp/fifo")
    session.exec('(exec 8>/dev/tty; while read -r line; do echo "got $line" >&8; done </tmp/fifo) &')
    for branch in return_both_ways(session):
        assert branch.exec("echo here >&9").output == "here\n"
        branch.send("echo word >&7", "Enter")
        branch.wait_for(text=r"^got word$", timeout_s=DEADLINE_S)


def test_a_shell_in_a_shell_keeps_job_control_and_keys(session: Session) -> None:
    session.send("PS1='in$ ' bash --norc", "Enter")
    session.wait_for(text=r"^in\$ $", timeout_s=DEADLINE_S)
    for branch in return_both_ways(session):
        branch.send("sleep 1000", "Enter")
        branch.exec_isolated("until pgrep -x sleep; do :; done", timeout_s=DEADLINE_S)
        branch.send("C-c")
        branch.wait_for(text=r"\^C\nin\$ $", timeout_s=DEADLINE_S)
        branch.send("echo he''ard >/dev/tty", "Enter")
        branch.wait_for(text=r"^heard$", timeout_s=DEADLINE_S)


def controlling_terminals(branch: Branch) -> dict[str, str]:
    """The controlling terminal of each process, by pid inside; no process may keep descriptors of the restore open."""
    found = {}
    for pid in branch.session.context.platform.cgroup(branch.record.incarnation).members():
        process = Path(f"/proc/{pid}")
        (inside,) = re.findall(r"^NSpid:.*\t(\d+)$", (process / "status").read_text(), re.MULTILINE)
        found[inside] = (process / "stat").read_text().rpartition(")")[2].split()[4]
        assert max(int(fd.name) for fd in (process / "fd").iterdir()) <= 255
    return found


def test_every_process_of_a_session_keeps_its_terminal_and_gets_no_other(session: Session) -> None:
    for name in ("gone", "side", "dead", "t4", "t5", "t6", "t7"):  # as many as there can be
        session.open_terminal(name)
    session.close_terminal("gone")  # the numbers have a gap
    with pytest.raises(ShellDied):
        session.exec("exit", terminal="dead")
    session.exec("sleep 1000 & (sleep 1000 &); setsid sleep 1000 &")
    session.exec("sh -c 'sleep 1000; true' &", terminal="side")
    # setsid needs a moment to start sleep
    wait_until(session, "[ $(pgrep -xc sleep) = 4 ] && ! pgrep -x setsid")
    before = controlling_terminals(session.main)
    assert list(before.values()).count("0") == 2  # init, and the process with its own session
    for _ in range(2):  # the second time, save the restored branch
        for branch in return_both_ways(session):
            assert controlling_terminals(branch) == before
