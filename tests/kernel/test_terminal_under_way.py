"""What is on its way through a terminal when a checkpoint is taken: unread output and unread input."""

import threading
from pathlib import Path

from support.crash import killed_at
from support.keyboard import shown, type_text, wait_until_shown
from support.waiting import DEADLINE_S
from waypoint import Branch, CommandResult, Session, Waypoint
from waypoint.store.lock import locked

LINES = 200_000
SNAPSHOTS = 5


def return_both_ways(session: Session) -> list[Branch]:
    """Save the session, whose shell is busy, and return to that point in both ways."""
    point = session.snapshot()
    session.restore(point)
    return [session.main, *session.fork(point)]


def test_a_snapshot_loses_and_doubles_nothing_of_a_flood_of_output(session: Session) -> None:
    results: list[CommandResult] = []
    command = threading.Thread(target=lambda: results.append(session.exec(f"seq {LINES}; touch /tmp/done")))
    command.start()
    for _ in range(SNAPSHOTS):
        session.snapshot()
    command.join(DEADLINE_S)
    assert results[0].output == "".join(f"{number}\n" for number in range(1, LINES + 1))


def test_a_flood_of_output_continues_where_it_was_in_every_branch(session: Session) -> None:
    # While a program writes, some output is unread; it writes until the test ends it.
    type_text(session.main, "i=0; until [ -e /tmp/end ]; do i=$((i+1)); echo $i; done; echo end $i\n")
    wait_until_shown(session.main, r"\n\d{3,}\r\n")
    for branch in return_both_ways(session):
        (branch.directory / "tmp/end").touch()
        *lines, end = wait_until_shown(branch, r"end \d+\r\n$").removesuffix("\r\n").split("\r\n")
        # the first line is the echo, or was cut by the ring buffer
        numbers = [int(line) for line in lines[1:]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert end == f"end {numbers[-1]}"


def test_a_half_typed_line_can_be_completed_and_is_echoed_once(session: Session) -> None:
    type_text(session.main, "read -p 'name? ' name; echo \"[$name]\"\n")
    wait_until_shown(session.main, r"\nname\? ")
    type_text(session.main, "Ali")
    wait_until_shown(session.main, "Ali")
    point = session.snapshot()
    assert shown(session.main).endswith("\r\nname? Ali")
    (branch,) = session.fork(point)
    type_text(session.main, "ce\n")
    type_text(branch, "baba\n")
    assert wait_until_shown(session.main, r"\]\r\n").endswith("\r\nname? Alice\r\n[Alice]\r\n")
    assert wait_until_shown(branch, r"\]\r\n").endswith("\r\nname? Alibaba\r\n[Alibaba]\r\n")


def test_lines_and_an_end_of_file_typed_ahead_are_read_once_and_in_order(session: Session) -> None:
    type_text(session.main, 'until [ -e /tmp/go ]; do sleep 0.02; done; cat; read last; echo "[$last]"\n')
    type_text(session.main, "one\ntwo\n\x04thr")
    wait_until_shown(session.main, "thr")
    for branch in return_both_ways(session):
        type_text(branch, "ee\n")
        (branch.directory / "tmp/go").touch()
        text = wait_until_shown(branch, r"\]\r\n")
        assert text.endswith("\r\none\r\ntwo\r\nthree\r\none\r\ntwo\r\n[three]\r\n")


def test_keys_typed_ahead_reach_a_raw_program(session: Session) -> None:
    session.exec("stty -icanon -echo -isig min 1 time 0")
    wait = "until [ -e /tmp/go ]; do sleep 0.02; done"
    type_text(session.main, f"echo reading no more; {wait}; head -c 5 | od -An -tx1; stty sane\n")
    # A shell that reads a raw terminal takes all input, even input meant for the next program.
    wait_until_shown(session.main, "reading no more")
    type_text(session.main, "\x03\n\x16a")
    for branch in return_both_ways(session):
        type_text(branch, "b")
        (branch.directory / "tmp/go").touch()
        assert "03 0a 16 61 62" in wait_until_shown(branch, r"62\r?\n")


def test_a_killed_snapshot_keeps_typed_input(session: Session, state_dir: Path) -> None:
    type_text(session.main, 'read name; echo "[$name]"\n')
    type_text(session.main, "half")
    wait_until_shown(session.main, "half")
    number = 0
    while killed_at(state_dir, number, "snapshot", session.id, f"try-{number}"):
        # CRIU may still be at work for its dead caller; it holds the branch's lock until it has ended.
        with locked(session.context.branch_lock(session.id, "main"), what="main"):
            pass
        with Waypoint(state_dir):
            number += 1
    assert number >= 4
    type_text(session.main, " a line\n")
    assert wait_until_shown(session.main, r"\]\r\n").endswith("\r\nhalf a line\r\n[half a line]\r\n")


def test_a_checkpoint_between_two_programs_of_a_loop_can_be_restored(session: Session) -> None:
    """When a program has ended and its shell has not yet taken the terminal back, there is no foreground group."""
    type_text(session.main, "i=0; until [ -e /tmp/end ]; do sleep 0.001; i=$((i+1)); done; echo end $i\n")
    for _ in range(20):  # one in ten hits that moment
        (branch,) = session.fork("main", ids=["side"])
        branch.destroy()
    for branch in return_both_ways(session):
        (branch.directory / "tmp/end").touch()
        wait_until_shown(branch, r"end \d+\r\n$")
