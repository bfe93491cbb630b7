"""Detached commands keep running, end, and are part of every checkpoint."""

import pytest

from support.waiting import DEADLINE_S, wait_until
from waypoint import Session
from waypoint.errors import NotFound, WaitTimedOut


def test_a_job_can_be_started_waited_for_and_read_from_any_offset(session: Session) -> None:
    job = session.start("echo one; until [ -e /tmp/go ]; do sleep 0.02; done; echo two; (exit 5)")
    session.exec_isolated("until [ -e /tmp/go ]; do touch /tmp/go; done")
    assert job.wait(DEADLINE_S).exit_code == 5
    assert job.output().output == b"one\r\ntwo\r\n"
    assert job.output(5).output == b"two\r\n"
    assert job.output(100).output == b""
    status = job.status()
    assert (status.terminal, status.length) == ("main", 10)
    assert status.ended is not None
    assert status.ended.exit_code == 5


def test_the_output_of_a_running_job_can_be_read(session: Session) -> None:
    job = session.start_isolated("echo out; echo err >&2; touch /tmp/said; sleep 1000")
    wait_until(session, "[ -e /tmp/said ]")
    written = job.output()
    assert (written.output, written.errors) == (b"out\n", b"err\n")
    assert job.status().ended is None
    with pytest.raises(WaitTimedOut):
        job.wait(0.05)
    job.signal(15)
    assert job.wait(DEADLINE_S).exit_code == 143


def test_an_unknown_job_is_not_found(session: Session) -> None:
    for act in (
        lambda: session.job(99).wait(DEADLINE_S),
        lambda: session.job(99).output(),
        lambda: session.job(99).signal(2),
    ):
        with pytest.raises(NotFound, match="no job 99"):
            act()


def test_a_checkpoint_includes_jobs_their_output_and_exit_codes(session: Session) -> None:
    ended = session.start_isolated("echo before; echo e >&2; exit 3")
    ended.wait(DEADLINE_S)
    running = session.start("i=0; until [ -e /tmp/go ]; do i=$((i+1)); done; echo went on; (exit 4)")
    point = session.snapshot()
    session.start_isolated("echo later").wait(DEADLINE_S)
    session.restore(point)
    for branch in (session.main, *session.fork(point, n=2)):
        assert [status.job for status in branch.jobs()] == [ended.number, running.number]
        again = branch.job(ended.number)
        assert (again.output().output, again.output().errors) == (b"before\n", b"e\n")
        assert again.wait(DEADLINE_S).exit_code == 3
        branch.exec_isolated("touch /tmp/go")
        assert branch.job(running.number).wait(DEADLINE_S).exit_code == 4
        assert branch.job(running.number).output().output == b"went on\r\n"


def test_a_loop_that_prints_numbers_continues_in_two_forks_without_a_gap(session: Session) -> None:
    job = session.start("for i in $(seq 1 300); do echo $i; sleep 0.005; done")
    wait_until_written(session, job.number, b"\r\n20\r\n")
    point = session.snapshot()
    saved = session.job(job.number)
    branches = session.fork(point, n=2)
    expected = b"".join(b"%d\r\n" % number for number in range(1, 301))
    for owner in (session.main, *branches):
        owner.job(job.number).wait(DEADLINE_S)
        assert owner.job(job.number).output().output == expected
    assert saved.status().ended is not None


def wait_until_written(session: Session, number: int, text: bytes) -> None:
    chunks: list[bytes] = []

    class Seen(Exception):
        pass

    def look(data: bytes) -> None:
        chunks.append(data)
        if text.replace(b"\r\n", b"\n") in b"".join(chunks):
            raise Seen

    with pytest.raises(Seen):
        session.job(number).follow(look)


def test_a_command_waits_for_a_shell_that_is_busy_with_a_job(session: Session) -> None:
    session.start("sleep 0.3; x=done")
    assert session.exec("echo $x").output == "done\n"
