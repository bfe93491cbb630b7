"""The published interface and its typed core, on the memory backend."""

import json
import re
import shutil
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from statefork import (
    AlwaysFalseDecider,
    AlwaysTrueDecider,
    DecisionContext,
    ForkableEnvironmentManager,
    RandomDecider,
    SmartCheckpointDecider,
    ThresholdDecider,
    create_env_manager,
    open_env_manager,
)
from statefork.arguments import as_number
from statefork.backend import CommandResult, Instance
from statefork.backends.memory import MemoryBackend
from statefork.cli import verbs
from statefork.cli.main import main
from statefork.cli.method import given_options
from statefork.errors import (
    BackendFailed,
    BranchExists,
    EnvironmentClosed,
    EnvironmentInUse,
    ForkIncomplete,
    ReplayFailed,
    StateForkError,
    UnknownBranch,
    UnknownSnapshot,
    WrongUse,
)
from statefork.record import EnvironmentDirectory, default_state_dir, directories, read_record
from statefork.stats import percentile


@pytest.fixture
def env(tmp_path: Path) -> Iterator[ForkableEnvironmentManager]:
    with create_env_manager("memory", state_dir=tmp_path) as manager:
        assert isinstance(manager, ForkableEnvironmentManager)
        yield manager


def output(env: ForkableEnvironmentManager, command: str, branch: str = "main") -> str:
    code, text, _ = env.exec_on_branch(branch, command)
    assert code == 0, text
    return text


def test_a_restore_brings_back_files_variables_and_directory(
    env: ForkableEnvironmentManager,
) -> None:
    env.exec_command("cd /app && export MODE=a && echo first > note")
    saved = env.snapshot()
    env.exec_command("cd / && export MODE=b && echo second > /app/note")
    assert saved is not None
    assert env.restore(saved)
    assert output(env, "pwd && echo $MODE && cat note") == "/app\na\nfirst\n"


def test_the_id_of_a_snapshot_shows_whether_it_is_physical(env: ForkableEnvironmentManager) -> None:
    physical = env.snapshot()
    env.core.decider = AlwaysFalseDecider()
    env.exec_command("true")
    virtual = env.snapshot()
    assert physical is not None
    assert len(physical) == 8
    assert int(physical, 16) >= 0
    assert virtual is not None
    assert len(virtual) == 8
    assert virtual[0] == "v"
    assert list(env.snapshots) == [physical]
    assert env.list_snapshots() == [physical, virtual]


def test_restoring_a_virtual_snapshot_runs_its_commands_again(env: ForkableEnvironmentManager) -> None:
    env.exec_command("echo 0 > count")
    env.snapshot()
    env.core.decider = AlwaysFalseDecider()
    env.exec_command("echo 1 > count")
    first = env.snapshot()
    env.exec_command("echo 2 > count")
    second = env.snapshot()
    env.exec_command("rm count")
    assert second is not None
    assert env.restore(second)
    assert output(env, "cat count") == "2\n"
    assert first is not None
    assert env.restore(first)
    assert output(env, "cat count") == "1\n"
    [fork] = env.fork(second)
    assert output(env, "cat count", fork.id) == "2\n"


def test_a_command_that_failed_the_first_time_may_fail_again(env: ForkableEnvironmentManager) -> None:
    env.snapshot()
    env.core.decider = AlwaysFalseDecider()
    env.exec_command("exit 3")
    virtual = env.snapshot()
    assert virtual is not None
    assert env.restore(virtual)


def test_a_replay_with_another_result_is_an_error_and_leaves_the_branch_alone(
    env: ForkableEnvironmentManager,
) -> None:
    env.snapshot()
    env.core.decider = AlwaysFalseDecider()
    env.exec_command("echo there > note")
    env.exec_command("cat note")
    virtual = env.snapshot()
    assert virtual is not None
    env.core.tree.node(virtual).replay_exit_codes[-1] = 7
    env.exec_command("echo mine > note")
    with pytest.raises(ReplayFailed, match=r"ended with 0, not 7"):
        env.core.restore(virtual)
    assert not env.restore(virtual)
    assert output(env, "cat note") == "mine\n"


def test_the_first_snapshot_is_physical_and_so_is_one_after_a_copy(
    env: ForkableEnvironmentManager, tmp_path: Path
) -> None:
    env.core.decider = AlwaysFalseDecider()
    first = env.snapshot()
    source = tmp_path / "data"
    source.write_text("copied\n")
    assert env.copy_in(source, "/data")
    second = env.snapshot()
    assert {first, second} == set(env.snapshots)
    assert env.copy_out("/data", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "copied\n"
    assert not env.copy_out("/nothing", tmp_path / "none")


def test_branches_are_independent_and_can_be_saved_and_parked(env: ForkableEnvironmentManager) -> None:
    env.exec_command("echo base > note")
    saved = env.snapshot()
    assert saved is not None
    made = env.fork(saved, n=2, ids=["a", "b"])
    assert [branch.id for branch in made] == ["a", "b"]
    output(env, "echo a > note", "a")
    assert output(env, "cat note", "b") == "base\n"
    parked = env.park_branch("a")
    assert parked is not None
    assert [branch.id for branch in env.list_branches()] == ["main", "b"]
    [again] = env.fork(parked, ids=["a"])
    assert output(env, "cat note", again.id) == "a\n"
    assert env.discard_branch("b")
    assert [branch.id for branch in env.list_branches()] == ["main", "a"]


def test_the_published_names_with_fork_mean_the_same(env: ForkableEnvironmentManager) -> None:
    saved = env.snapshot()
    assert saved is not None
    [fork] = env.fork(saved, ids=["a"])
    assert fork.base_checkpoint == fork.base_snapshot_id == saved
    assert env.list_forks() == env.list_branches()
    assert env.live_forks == env.live_branches
    assert env.current_fork_id == env.current_branch_id == "main"
    assert env.destroy_fork("a")
    assert set(env.live_forks) == {"main"}


def test_invalid_uses_of_branches_are_refused(env: ForkableEnvironmentManager) -> None:
    saved = env.snapshot()
    assert saved is not None
    env.fork(saved, ids=["a"])
    assert env.fork(saved, ids=["a"]) == []
    assert env.fork(saved, ids=["x", "x"]) == []
    assert env.fork(saved, ids=["main"]) == []
    assert env.fork(saved, n=0) == []
    wrong: list[Any] = ["ab", [""], ["a/b"], ["../a"], ["ž"], ["x" * 65], [5], []]
    for ids in wrong:
        assert env.fork(saved, ids=ids) == [], ids
    assert env.fork("nothing") == []
    assert not env.restore(cast("str", []))
    assert [branch.id for branch in env.list_branches()] == ["main", "a"]
    assert not env.discard_branch("main")
    assert env.park_branch("main") is None
    assert env.checkout("a")
    assert not env.discard_branch("a")
    with pytest.raises(WrongUse):
        env.core.discard("a")
    with pytest.raises(BranchExists):
        env.core.fork(saved, ids=["a"])
    with pytest.raises(UnknownBranch):
        env.core.run("true", branch_id="nobody")
    with pytest.raises(UnknownSnapshot):
        env.core.restore("nothing")
    assert env.snapshot_branch("a", park=True) is not None
    assert env.current_branch_id == "main"


def test_the_tree_marks_the_current_snapshot_of_each_branch(env: ForkableEnvironmentManager) -> None:
    assert env.print_snapshot_tree() == "No snapshot tree available."
    root = env.snapshot()
    env.exec_command("true")
    child = env.snapshot()
    assert root is not None
    assert child is not None
    assert env.print_snapshot_tree() == f"Snapshot Tree:\n - {root}\n   - {child} (current)"
    env.fork(root, ids=["f"])
    assert (
        env.print_snapshot_tree() == f"Snapshot Tree:\n - {root} (current: f)\n   - {child} (current: main)"
    )


def test_strict_managers_raise(tmp_path: Path) -> None:
    with create_env_manager("memory", state_dir=tmp_path, strict=True) as env:
        with pytest.raises(UnknownSnapshot):
            env.restore("nothing")
        env.cleanup()
        with pytest.raises(EnvironmentClosed):
            env.exec_command("true")


def test_cleanup_leaves_nothing_and_later_calls_are_refused(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    assert env.cleanup()
    assert env.cleanup()
    assert env.is_cleaned_up
    assert list(tmp_path.iterdir()) == []
    code, _, message = env.exec_command("true")
    assert (code, message) == (-1, "the environment was cleaned up")
    assert env.snapshot() is None


def test_unknown_methods_and_wrong_arguments_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unknown method: teleport"):
        create_env_manager("teleport")
    for method, missing in (
        ("docker_attach", "container_name"),
        ("podman_attach", "container_name"),
        ("hybrid_attach", "container_name"),
        ("gvisor_attach", "container_name"),
        ("criu_attach", "target_pid"),
        ("waypoint_attach", "session_id"),
        ("ckpt_attach", "session_id"),
        ("firecracker_attach", "pid"),
    ):
        with pytest.raises(KeyError, match=missing):
            create_env_manager(method)
    with pytest.raises(WrongUse, match="criu_build takes no option 'dockerfile_dir'") as wrong:
        create_env_manager("criu_build", dockerfile_dir=".", state_dir=tmp_path)
    assert "work_dir" in wrong.value.hint


def test_options_of_the_command_line_are_parsed_as_json_but_never_as_numbers() -> None:
    words = [
        "container_name=12e45678",
        "session_id=0123",
        "build=false",
        'extra_args=["-v","/a:/a"]',
        "base=a=b",
    ]
    given = given_options(Namespace(option=words, dir=None, state_dir=None))
    assert given == {
        "container_name": "12e45678",
        "session_id": "0123",
        "build": False,
        "extra_args": ["-v", "/a:/a"],
        "base": "a=b",
    }
    assert as_number("target_pid", "12") == as_number("target_pid", 12) == 12
    with pytest.raises(WrongUse, match="target_pid='x' is not a whole number"):
        as_number("target_pid", "x")


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    env.core.leave()
    record = tmp_path / env.core.id / "environment.json"
    for text in ("", "[]", '{"version": 1}', '{"version": 99}'):
        record.write_text(text)
        with pytest.raises(StateForkError, match=env.core.id):
            open_env_manager(env.core.id, state_dir=tmp_path)


def test_an_environment_that_cannot_be_recorded_is_reported_without_raising(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / "file/state")
    assert main(["create", "--method", "memory", "--state-dir", directory]) == 1
    said = capsys.readouterr().err
    assert f"environments cannot be kept in {directory}: Not a directory" in said
    assert "STATEFORK_STATE_DIR" in said
    env = create_env_manager("memory", state_dir=tmp_path)
    shutil.rmtree(tmp_path / env.core.id)
    assert "cannot be recorded" in env.exec_command("true")[2]
    assert env.snapshot() is None
    assert env.cleanup()


def test_removing_an_environment_during_a_listing_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verbs, "directories", lambda _state_dir: [tmp_path / "gone"])
    assert main(["list", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No environments.\n"


def test_using_an_environment_that_was_left_is_refused(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    env.core.leave()
    assert env.exec_command("true") == (-1, "", "the environment was left")


def test_an_interrupted_command_makes_the_next_snapshot_physical(tmp_path: Path) -> None:
    class Interrupted(MemoryBackend):
        def run(self, *_: object) -> CommandResult:
            raise KeyboardInterrupt

    with create_env_manager("memory", state_dir=tmp_path, decider=AlwaysFalseDecider()) as env:
        env.snapshot()
        env.exec_command("true")
        assert str(env.snapshot())[0] == "v"
        with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(MemoryBackend, "run", Interrupted.run)
            env.exec_command("make")
        assert not read_record(tmp_path / env.core.id).branches["main"].is_replayable
        assert str(env.snapshot())[0] != "v"


def test_an_environment_that_cannot_be_removed_is_forgotten_only_with_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    env.core.leave()
    words = ["cleanup", env.core.id, "--state-dir", str(tmp_path)]

    def fail(_self: MemoryBackend) -> None:
        raise BackendFailed("memory", "cleanup", "the daemon is gone")

    monkeypatch.setattr(MemoryBackend, "close", fail)
    assert main(words) == 1
    assert "the daemon is gone" in capsys.readouterr().err
    assert len(list(directories(tmp_path))) == 1
    assert main([*words, "--force"]) == 0
    assert "left behind: memory: cleanup failed: the daemon is gone" in capsys.readouterr().err
    assert list(directories(tmp_path)) == []


def test_an_interrupted_start_is_recorded_before_it_begins(tmp_path: Path) -> None:
    seen: list[str] = []

    class Killed(BaseException):
        pass

    def start(_self: MemoryBackend, _branch_id: str) -> Instance:
        seen.extend(read_record(path).method for path in directories(tmp_path))
        raise Killed

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(MemoryBackend, "start", start)
        create_env_manager("memory", state_dir=tmp_path)
    assert seen == ["memory"], "it must be recorded before it begins"
    assert list(directories(tmp_path)) == []


def test_a_branch_that_could_not_be_restored_is_removed_without_raising(
    env: ForkableEnvironmentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = env.snapshot()
    assert saved is not None
    assert env.restore_discard_first(saved)
    assert env.current_snapshot == saved

    def fail(*_: object) -> Instance:
        raise WrongUse("no room")

    monkeypatch.setattr(env.core.backend, "spawn", fail)
    assert not env.restore_discard_first(saved)
    assert env.current_snapshot is None
    assert env.list_branches() == []
    assert env.exec_command("true")[0] == -1


def test_the_record_is_complete_after_every_step_and_locked_by_one_process(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    env.exec_command("echo 1 > note")
    saved = env.snapshot()
    [directory] = tmp_path.iterdir()
    stored = json.loads((directory / "environment.json").read_text())
    assert [node["snapshot_id"] for node in stored["nodes"]] == [saved]
    assert [entry.operation for entry in read_record(directory).history] == ["container", "exec", "snapshot"]
    with pytest.raises(EnvironmentInUse, match="in use by process"):
        EnvironmentDirectory.open(tmp_path, directory.name)
    env.core.leave()
    EnvironmentDirectory.open(tmp_path, directory.name).release()
    with pytest.raises(WrongUse, match="no environment"):
        EnvironmentDirectory.open(tmp_path, "nothing")
    (directory / "lock").unlink()
    (directory / "lock").mkdir()
    with pytest.raises(StateForkError, match="cannot be opened"):
        EnvironmentDirectory.open(tmp_path, directory.name)


def test_the_history_is_appended_to_and_continues_after_a_truncated_line(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    env.exec_command("true")
    env.core.leave()
    history = tmp_path / env.core.id / "history.jsonl"
    whole = history.read_text()
    history.write_text(whole + '{"sequence": 3, "opera')
    assert len(read_record(tmp_path / env.core.id).history) == 2
    with open_env_manager(env.core.id, state_dir=tmp_path) as again:
        again.exec_command("true")
        assert history.read_text().startswith(whole)
        assert [json.loads(line)["sequence"] for line in history.read_text().splitlines()] == [1, 2, 3]
        assert "history" not in json.loads((tmp_path / again.core.id / "environment.json").read_text())


def test_two_environments_are_independent(tmp_path: Path) -> None:
    with (
        create_env_manager("memory", state_dir=tmp_path) as one,
        create_env_manager("memory", state_dir=tmp_path) as other,
    ):
        one.exec_command("echo 1 > note")
        assert other.exec_command("cat note")[0] == 1
        one.cleanup()
        assert other.exec_command("true")[0] == 0


def test_threads_work_on_different_branches_at_once(env: ForkableEnvironmentManager) -> None:
    saved = env.snapshot()
    assert saved is not None
    names = [branch.id for branch in env.fork(saved, n=8)]

    def work(name: str) -> None:
        for number in range(20):
            output(env, f"echo {name} {number} > note", name)
        env.snapshot_branch(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [output(env, "cat note", name) for name in names] == [f"{name} 19\n" for name in names]
    assert len(env.snapshots) == 9


def test_a_partly_failed_fork_names_the_failed_branches(
    env: ForkableEnvironmentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = env.snapshot()
    assert saved is not None
    spawn = env.core.backend.spawn

    def fail_for_b(image: object, branch_id: str) -> object:
        if branch_id == "b":
            raise WrongUse("no room")
        return spawn(image, branch_id)  # type: ignore[arg-type]

    monkeypatch.setattr(env.core.backend, "spawn", fail_for_b)
    with pytest.raises(ForkIncomplete, match="1 of 2 branches failed: b: no room"):
        env.core.fork(saved, ids=["a", "b"])
    assert set(env.live_branches) == {"main", "a"}


@pytest.mark.parametrize(
    ("decider", "seconds", "expected"),
    [
        (AlwaysTrueDecider(), 0.0, True),
        (AlwaysFalseDecider(), 99.0, False),
        (ThresholdDecider(), 4.9, False),
        (ThresholdDecider(), 5.0, True),
        (ThresholdDecider(1.0), 1.0, True),
        (RandomDecider(probability=0.0), 1.0, False),
        (RandomDecider(probability=1.0), 1.0, True),
    ],
)
def test_deciders_decide_as_documented(decider: AlwaysTrueDecider, seconds: float, expected: bool) -> None:
    assert decider.decide(DecisionContext(seconds)) is expected


def test_a_decider_gets_the_time_of_all_commands_to_replay_also_after_a_restore(tmp_path: Path) -> None:
    seen: list[float] = []

    class Noting(AlwaysFalseDecider):
        def decide(self, context: DecisionContext) -> bool:
            seen.append(context.cumulative_exec_time)
            return False

    with create_env_manager("memory", state_dir=tmp_path, decider=Noting()) as env:
        assert isinstance(env, ForkableEnvironmentManager)
        first = env.core.snapshot().snapshot_id
        env.exec_command("true")
        virtual = env.core.snapshot().snapshot_id
        env.core.restore(virtual)
        env.core.snapshot()
        env.core.fork(virtual, ids=["f"])
        env.core.snapshot("f")
        env.core.restore(first)
        env.core.snapshot()
    assert seen[0] > 0
    assert seen[1:] == [seen[0], seen[0], 0.0]


def test_the_smart_decider_compares_with_the_time_of_snapshots() -> None:
    decide = SmartCheckpointDecider().decide
    assert decide(DecisionContext(1.0, snapshot_seconds=0.5))
    assert not decide(DecisionContext(0.4, snapshot_seconds=0.5))
    assert decide(DecisionContext(0.0, pid=-1))  # nothing is known, so be safe
    assert not decide(DecisionContext(0.0, pid=1))


def test_statistics_are_reported_as_numbers_and_text(env: ForkableEnvironmentManager) -> None:
    assert "[CONTAINER ] mean=" in env.stats.print_stats()
    env.exec_command("echo 12345 > note")
    saved = env.snapshot()
    result = env.stats.get_all_statistics()
    assert result.time["snapshot"].unit == "seconds"
    assert result.time["snapshot"].count == 1
    assert re.search(rf"-> {saved} took \d+\.\d{{4}}s", env.stats.print_history())
    assert env.stats.print_history().splitlines()[0].startswith("#1    [CONTAINER ] -> main took ")
    assert env.stats.print_size_details() == f"[Storage Cost Summary #1]\n>> {saved}: 0.000 MB"
    assert percentile([5.0, 1.0, 3.0], 50) == 3.0
    assert percentile(list(range(1, 101)), 95) == 95


def test_the_state_directory_comes_from_the_environment(tmp_path: Path) -> None:
    assert default_state_dir({"STATEFORK_STATE_DIR": str(tmp_path)}) == tmp_path
