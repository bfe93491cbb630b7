"""At whatever step an operation fails or is killed, the branch runs, and nothing half-made is visible."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.crash import fail_at, killed_at, start_command
from support.leaks import look_at_host
from waypoint import Session, Waypoint
from waypoint.errors import EngineError, RestoreFailed
from waypoint.model import OperationStatus
from waypoint.session.operation import Operation
from waypoint.store.lock import locked

STEPS_MAX = 12  # more steps than any operation has: a loop ends when the operation is no longer cut off


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        os.sched_yield()


def visible(session: Session) -> tuple[list[str], list[str]]:
    """What a user can see of a session."""
    return (
        [checkpoint.name for checkpoint in session.checkpoints()],
        [branch.name for branch in session.branches()],
    )


def assert_settled(session: Session) -> None:
    assert session.context.catalogue.unfinished() == []
    assert all(branch.is_running() for branch in session.branches())
    layout = session.context.layout
    live = {branch.record.incarnation for branch in session.branches()}
    for directory in (layout.mount(""), layout.pool / "branches"):
        assert live >= set(os.listdir(directory))
    assert {checkpoint.id for checkpoint in session.checkpoints()} >= set(
        os.listdir(layout.pool / "checkpoints")
    )
    for branch in session.branches():
        assert os.path.realpath(branch.directory) == str(layout.mount(branch.record.incarnation))


@pytest.fixture
def prepared(session: Session) -> Session:
    """A session whose branch has moved on since its one checkpoint."""
    session.exec("x=saved; echo saved >/tmp/note; sleep 1000 & true")
    session.snapshot("point")
    session.exec("x=later; echo later >/tmp/note")
    return session


STATE = 'echo "$x $(cat /tmp/note) $(jobs -p | wc -l)"'

OPERATIONS: dict[str, Callable[[Session, str], object]] = {
    "snapshot": lambda session, name: session.snapshot(name),
    "restore": lambda session, _name: session.restore("point"),
    "fork": lambda session, name: session.fork("point", ids=[name]),
}


@pytest.mark.quick
@pytest.mark.parametrize("verb", sorted(OPERATIONS))
def test_a_failure_at_any_step_keeps_the_branch_running_and_the_catalogue_unchanged(
    prepared: Session, verb: str
) -> None:
    before = visible(prepared)
    reached = []
    for number in range(STEPS_MAX):
        with fail_at(number) as failure:
            try:
                OPERATIONS[verb](prepared, f"try-{number}")
            except EngineError as error:
                message = str(error)
        if not failure.reached:
            break
        assert "made to fail" in message
        reached.append(failure.reached)
        if failure.reached == "restore/retire":  # already published: the next command finishes the removal
            Waypoint(prepared.context.layout.state_dir).close()
            assert prepared.exec(STATE).output == "saved saved 1\n"
            assert_settled(prepared)
            prepared.exec("x=later; echo later >/tmp/note")
            continue
        assert visible(prepared) == before
        assert prepared.exec(STATE).output == "later later 1\n"
        assert_settled(prepared)
    assert len(reached) >= 5, reached
    assert all(step.startswith(verb) for step in reached)


@pytest.mark.parametrize("verb", ["snapshot", "restore", "fork"])
def test_the_next_command_repairs_what_a_killed_one_left_at_any_step(
    prepared: Session, state_dir: Path, verb: str
) -> None:
    killed = 0
    for number in range(STEPS_MAX):
        before = visible(prepared)
        arguments = {
            "snapshot": ["snapshot", prepared.id, f"try-{number}"],
            "restore": ["restore", prepared.id, "point"],
            "fork": ["fork", prepared.id, "point", "--id", f"try-{number}"],
        }[verb]
        if not killed_at(state_dir, number, *arguments):
            break
        killed += 1
        assert prepared.exec("true").exit_code == 0
        # CRIU may still be at work for its dead caller; it holds the branch's lock until it has ended.
        with locked(prepared.context.branch_lock(prepared.id, "main"), what="main"):
            pass
        with Waypoint(state_dir) as waypoint:
            again = waypoint.session(prepared.id)
            state = again.exec(STATE).output
            assert state in (
                ("later later 1\n", "saved saved 1\n") if verb == "restore" else ("later later 1\n",)
            )
            assert visible(again) == before
            assert_settled(again)
            cut_off = [operation for operation in again.operations() if operation.kind == verb][-1]
            assert cut_off.status is OperationStatus.RECOVERED
            again.exec("x=later; echo later >/tmp/note")
    assert killed >= 5


def has_begun(session: Session, process: "subprocess.Popen[bytes]") -> bool:
    """Whether the operation has begun; one that was not observed in time may have ended already."""
    return session.context.catalogue.has_unfinished() or process.poll() is not None


def test_a_branch_survives_kills_at_arbitrary_moments(prepared: Session, state_dir: Path) -> None:
    """The steps are only our own boundaries; these kills also hit CRIU in between."""
    moments = random.Random()  # not seeded, so that each run of the suite tries other moments
    for number in range(8):
        verb = ["snapshot", prepared.id, f"try-{number}"] if number % 2 else ["restore", prepared.id, "point"]
        with start_command(state_dir, -1, *verb) as process:
            wait_until(partial(has_begun, prepared, process))
            # The sleep is what this test is about, not a way to wait. Two moments follow each other closely, so that
            # they hit a running operation, however fast the machine is.
            time.sleep(moments.random() * 0.05 if number > 1 else 0.0)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL)
        with Waypoint(state_dir) as waypoint:
            again = waypoint.session(prepared.id)
            assert again.exec(STATE).output in ("later later 1\n", "saved saved 1\n")
            checkpoint = again.snapshot()  # waits for a CRIU that still works for the dead caller
            assert_settled(again)
            again.exec("x=later; echo later >/tmp/note")
            again.restore(checkpoint)
            again.exec("x=later; echo later >/tmp/note")
    ended = {operation.status for operation in prepared.operations()}
    assert OperationStatus.RECOVERED in ended, "no kill hit a running operation"


@pytest.mark.parametrize("verb", sorted(OPERATIONS))
def test_a_signal_right_after_publishing_undoes_nothing(
    prepared: Session, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = prepared.context
    transaction = type(context.catalogue.transaction())
    publish, leave = Operation.publish, transaction.__exit__
    published = []

    def publish_and_note(operation: Operation, status: OperationStatus = OperationStatus.DONE) -> None:
        publish(operation, status)
        published.append(status)

    def leave_and_interrupt(self: object, *details: object) -> None:
        leave(self, *details)  # type: ignore[arg-type]
        if published:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(Operation, "publish", publish_and_note)
    monkeypatch.setattr(transaction, "__exit__", leave_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        OPERATIONS[verb](prepared, "made")
    with Waypoint(prepared.context.layout.state_dir) as waypoint:
        again = waypoint.session(prepared.id)
        assert again.exec(STATE).output == ("saved saved 1\n" if verb == "restore" else "later later 1\n")
        if verb == "snapshot":
            again.restore("made")
            assert again.exec(STATE).output == "later later 1\n"
        if verb == "fork":
            assert again.branch("made").exec(STATE).output == "saved saved 1\n"
        assert_settled(again)


def test_the_next_command_waits_for_one_whose_caller_was_killed(session: Session, state_dir: Path) -> None:
    with start_command(
        state_dir, -1, "exec", session.id, "--", "echo begun >/tmp/begun; sleep 2; x=done"
    ) as process:
        wait_until((session.directory / "tmp/begun").exists)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert session.exec("echo $x").output == "done\n"


def test_a_session_with_a_killed_snapshot_can_be_removed(
    waypoint: Waypoint, prepared: Session, state_dir: Path
) -> None:
    assert killed_at(state_dir, 3, "snapshot", prepared.id, "cut")
    prepared.cleanup(force=True)  # by a process that has not run a recovery
    with Waypoint(state_dir) as again:
        assert again.context.catalogue.unfinished() == []


def test_a_killed_removal_of_a_session_is_finished_by_the_next_command(
    waypoint: Waypoint, state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    killed = 0
    for number in range(STEPS_MAX):
        session = waypoint.create(workspace)
        session.snapshot("point")
        session.fork("point")
        if not killed_at(state_dir, number, "cleanup", session.id):
            break
        killed += 1
        with Waypoint(state_dir) as again:
            assert again.sessions() == []
        assert look_at_host(state_dir).processes == frozenset()
    assert killed >= 9


def test_finishing_a_removal_waits_until_no_branch_is_in_use(
    waypoint: Waypoint, state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    session = waypoint.create(workspace)
    assert killed_at(state_dir, 1, "cleanup", session.id)  # the session is closed, but still runs
    with locked(session.context.branch_lock(session.id, "main"), what="main"), Waypoint(state_dir) as again:
        assert len(again.context.catalogue.unfinished()) == 1
        assert session.main.is_running()
    with Waypoint(state_dir) as again:
        assert again.context.catalogue.unfinished() == []


def test_a_killed_removal_of_a_branch_is_finished_by_the_next_command(
    prepared: Session, state_dir: Path
) -> None:
    killed = 0
    for number in range(STEPS_MAX):
        prepared.fork("point", ids=["side"])
        if not killed_at(state_dir, number, "destroy", f"{prepared.id}:side"):
            break
        killed += 1
        with Waypoint(state_dir) as again:
            assert [branch.name for branch in again.session(prepared.id).branches()] == ["main"]
            assert_settled(again.session(prepared.id))
    assert killed >= 3


def test_a_session_whose_creation_was_killed_is_never_visible(
    waypoint: Waypoint, state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    for number in range(STEPS_MAX):
        if not killed_at(state_dir, number, "init", str(workspace), "--name", "cut"):
            break
        with Waypoint(state_dir) as again:
            assert again.sessions() == []
    assert number >= 4
    waypoint.session("cut").cleanup()


def test_a_killed_criu_leaves_no_directory_on_the_host(
    prepared: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery kills CRIU like this when it finds one still running."""
    context = prepared.context
    before = set(_directories_of_criu())
    live = {branch.record.incarnation for branch in prepared.branches()}

    def kill_criu(_pid: int) -> None:  # called when all processes are restored; CRIU waits for us
        (incarnation,) = set(os.listdir(context.layout.mount(""))) - live
        context.platform.cgroup(incarnation).begin_kill()

    monkeypatch.setattr("waypoint.engine.restore.refill_terminals", kill_criu)
    with pytest.raises(RestoreFailed):
        prepared.restore("point")
    left = set(_directories_of_criu()) - before

    def is_clean() -> bool:
        left.intersection_update(_directories_of_criu())  # that of another session disappears by itself
        return not left

    wait_until(is_clean)
    assert prepared.exec("echo $x").output == "later\n"


def _directories_of_criu() -> list[Path]:
    return list(Path("/tmp").glob(".criu.*"))
