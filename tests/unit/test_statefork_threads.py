"""Several threads, one environment: everything made is recorded, and no name is given twice."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statefork import AlwaysFalseDecider, ForkableEnvironmentManager, create_env_manager
from statefork.backend import CommandResult, Image, Instance
from statefork.backends.memory import MemoryBackend
from statefork.errors import BranchExists, EnvironmentClosed

TIMEOUT_S = 20.0
MUST_NOT_COME_S = 0.5
"""How long a test waits for something that must not happen."""


@pytest.fixture
def env(tmp_path: Path) -> Iterator[ForkableEnvironmentManager]:
    with create_env_manager("memory", state_dir=tmp_path) as manager:
        assert isinstance(manager, ForkableEnvironmentManager)
        yield manager


def saved(env: ForkableEnvironmentManager) -> str:
    return env.core.snapshot().snapshot_id


def wait_until_refused(env: ForkableEnvironmentManager) -> str:
    """Wait until the environment is about to end or has ended; return its error."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            env.core.branch()
        except EnvironmentClosed as error:
            return str(error)
    raise AssertionError("the environment did not end")


@pytest.mark.parametrize(
    ("made_by", "call"),
    [
        ("spawn", lambda env, snapshot: env.fork(snapshot, ids=["a"])),
        ("replace", lambda env, snapshot: env.restore(snapshot)),
        ("snapshot", lambda env, _snapshot: env.snapshot()),
    ],
)
def test_cleanup_waits_for_what_is_being_made(
    env: ForkableEnvironmentManager,
    monkeypatch: pytest.MonkeyPatch,
    made_by: str,
    call: Callable[[ForkableEnvironmentManager, str], object],
) -> None:
    snapshot = saved(env)
    order: list[str] = []
    refused: list[str] = []
    is_closed = threading.Event()
    make, close = getattr(env.core.backend, made_by), env.core.backend.close

    def slow(*arguments: object) -> Instance | Image:
        cleaner.start()
        refused.append(wait_until_refused(env))
        is_closed.wait(MUST_NOT_COME_S)
        made: Instance | Image = make(*arguments)
        order.append("made")
        return made

    def noted_close() -> None:
        order.append("closed")
        close()
        is_closed.set()

    monkeypatch.setattr(env.core.backend, made_by, slow)
    monkeypatch.setattr(env.core.backend, "close", noted_close)
    cleaner = threading.Thread(target=env.cleanup)
    assert call(env, snapshot)
    cleaner.join(TIMEOUT_S)
    assert order == ["made", "closed"]
    assert refused == ["the environment is about to end"]
    assert env.is_cleaned_up


def test_cleanup_does_not_wait_for_a_command(
    env: ForkableEnvironmentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, is_ended = threading.Event(), threading.Event()

    def run(*_: object) -> CommandResult:
        has_begun.set()
        assert is_ended.wait(TIMEOUT_S)
        return CommandResult(exit_code=137)

    monkeypatch.setattr(env.core.backend, "run", run)
    codes: list[int] = []
    worker = threading.Thread(target=lambda: codes.append(env.exec_command("sleep infinity")[0]))
    worker.start()
    assert has_begun.wait(TIMEOUT_S)
    assert env.cleanup()
    is_ended.set()
    worker.join(TIMEOUT_S)
    assert codes == [137]


def test_a_signal_handler_may_clean_up_during_a_snapshot_of_its_own_thread(
    env: ForkableEnvironmentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Image:
        assert env.cleanup()
        raise KeyboardInterrupt

    monkeypatch.setattr(env.core.backend, "snapshot", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.snapshot()
    assert env.is_cleaned_up


def test_a_replay_stops_when_the_environment_ends(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path, decider=AlwaysFalseDecider())
    assert isinstance(env, ForkableEnvironmentManager)
    saved(env)
    env.exec_command("echo 1")
    env.exec_command("echo 2")
    virtual = saved(env)
    ran: list[object] = []
    cleaner = threading.Thread(target=env.cleanup)

    def run(
        _self: MemoryBackend, _instance: Instance, command: str, _timeout_s: float | None
    ) -> CommandResult:
        ran.append(command)
        cleaner.start()
        wait_until_refused(env)
        return CommandResult(exit_code=0)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryBackend, "run", run)
        assert env.fork(virtual) == []
        cleaner.join(TIMEOUT_S)
    assert ran == ["echo 1"]
    assert env.is_cleaned_up


def test_a_name_belongs_to_the_first_caller_that_asks_for_it(
    env: ForkableEnvironmentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = saved(env)
    made: list[Instance] = []
    spawn = env.core.backend.spawn

    def meanwhile(image: Image, branch_id: str) -> Instance:
        if not made:
            made.append(spawn(image, branch_id))
            with pytest.raises(BranchExists):
                env.core.fork(snapshot, ids=["a"])
            return made[0]
        made.append(spawn(image, branch_id))
        return made[-1]

    monkeypatch.setattr(env.core.backend, "spawn", meanwhile)
    [branch] = env.core.fork(snapshot, ids=["a"])
    assert [branch.instance] == made
    made.clear()
    env.checkout("a")
    env.core.restore(snapshot, discard_first=True)
    assert len(made) == 1
    assert env.current_branch_id == "a"
    monkeypatch.undo()
    assert env.core.fork(snapshot, ids=["b"]), "an unused name must be free again"
