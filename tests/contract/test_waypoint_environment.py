"""Waypoint keeps the whole contract."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from contract.environment import EnvironmentContract
from statefork import (
    AlwaysFalseDecider,
    EnvironmentManager,
    ForkableEnvironmentManager,
    create_env_manager,
    open_env_manager,
)
from statefork.errors import BackendFailed
from statefork.published_managers import WaypointFork
from support.leaks import Holdings, look_at_host
from support.workspace import new_workspace
from waypoint import Waypoint

pytestmark = pytest.mark.kernel


@contextmanager
def clean_environment(
    state_dir: Path, workspace: Path, directory: Path
) -> Iterator[ForkableEnvironmentManager]:
    """An environment that must leave nothing behind."""
    before = look_at_host(state_dir)
    with create_env_manager(
        "waypoint_build",
        dockerfile_dir=str(workspace),
        build=False,
        waypoint_state_dir=str(state_dir),
        state_dir=directory / "environments",
    ) as manager:
        assert isinstance(manager, ForkableEnvironmentManager)
        yield manager
    assert look_at_host(state_dir) - before == Holdings()


@pytest.fixture(scope="class")
def shared(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkableEnvironmentManager]:
    with (
        new_workspace() as workspace,
        clean_environment(state_dir, workspace, tmp_path_factory.mktemp("shared")) as env,
    ):
        yield env


@pytest.fixture
def own(state_dir: Path, workspace: Path, tmp_path: Path) -> Iterator[ForkableEnvironmentManager]:
    """An environment for one test only."""
    with clean_environment(state_dir, workspace, tmp_path) as env:
        yield env


class TestWaypoint(EnvironmentContract):
    def end(self, env: EnvironmentManager) -> None:
        session = env.core.backend.session  # type: ignore[attr-defined]
        session.context.platform.cgroup(session.main.record.incarnation).kill()

    def test_a_virtual_snapshot_replaces_main_only_when_complete(
        self, env: ForkableEnvironmentManager
    ) -> None:
        env.exec_command("x=1")
        env.snapshot()
        env.core.decider = AlwaysFalseDecider()
        env.exec_command("x=2")
        virtual = env.snapshot()
        env.exec_command("x=3")
        assert virtual is not None
        assert env.restore(virtual)
        assert env.exec_command("echo $x")[1] == "2\n"
        assert [branch.id for branch in env.list_branches()] == ["main"]
        assert len(env.core.backend.session.branches()) == 1  # type: ignore[attr-defined]

    def test_a_branch_discarded_before_its_restore_keeps_its_name(
        self, env: ForkableEnvironmentManager
    ) -> None:
        env.exec_command("x=1")
        saved = env.snapshot()
        assert saved is not None
        [fork] = env.fork(saved, ids=["other"])
        assert isinstance(fork, WaypointFork)
        assert Path(fork.socket).is_socket()
        assert 0.0 < fork.restore_duration < 60.0
        for name in ("main", "other"):
            assert env.checkout(name)
            env.exec_command("x=2")
            assert env.restore_discard_first(saved)
            assert env.exec_command("echo $x")[1] == "1\n"
            assert env.current_branch_id == name
        assert {branch.name for branch in env.core.backend.session.branches()} == {"main", "other"}  # type: ignore[attr-defined]

    def test_another_process_can_continue_the_environment(
        self, own: EnvironmentManager, tmp_path: Path
    ) -> None:
        env = own
        env.exec_command("x=1")
        saved = env.snapshot()
        assert saved is not None
        env.core.leave()
        again = open_env_manager(env.core.id, state_dir=tmp_path / "environments")
        assert again.exec_command("echo $x")[1] == "1\n"
        assert again.restore(saved)
        assert [entry.operation for entry in again.stats.entries][:3] == ["container", "exec", "snapshot"]
        assert again.cleanup()

    def test_attaching_continues_the_history_of_a_session_and_leaves_it_running(
        self, own: EnvironmentManager, state_dir: Path, tmp_path: Path
    ) -> None:
        session = own.core.backend.session  # type: ignore[attr-defined]
        session.exec("x=1")
        session.snapshot("first")
        session.snapshot("second")
        attach = partial(
            create_env_manager,
            session_id=session.id,
            waypoint_state_dir=str(state_dir),
            state_dir=tmp_path / "attached",
        )
        attached = attach("ckpt_attach")
        assert attached.list_snapshots() == ["first", "second"]
        assert attached.snapshot_graph["second"].parent_id == "first"
        assert attached.restore("first")
        session.snapshot("third")
        assert isinstance(attached, ForkableEnvironmentManager)
        assert attached.sync_snapshot_tree() == 1
        attached.fork("first", ids=["mine"])
        attached.core.leave()
        session.exec("y=behind the back")
        attached = attach("waypoint_attach", decider=AlwaysFalseDecider())
        assert "fork" in [entry.operation for entry in attached.stats.entries], (
            "attaching found another history"
        )
        saved = attached.snapshot()
        assert saved in attached.snapshots, "a virtual snapshot, although other commands ran"
        assert attached.cleanup()
        assert [branch.name for branch in session.branches()] == ["main"]
        assert session.exec("echo $x").output == "1\n"


def test_an_environment_whose_session_was_removed_can_be_inspected_and_removed(
    state_dir: Path, workspace: Path, tmp_path: Path
) -> None:
    directories = {"waypoint_state_dir": str(state_dir), "state_dir": tmp_path}
    env = create_env_manager("waypoint_build", dockerfile_dir=str(workspace), build=False, **directories)
    assert isinstance(env, ForkableEnvironmentManager)
    saved = env.core.snapshot().snapshot_id
    env.fork(saved)
    session = env.core.backend.session  # type: ignore[attr-defined]
    attached = create_env_manager("waypoint_attach", session_id=session.id, **directories)
    assert set(env.stats.get_all_statistics().size) == {"FILESYSTEM #1", "MEMORY #1"}
    session.cleanup(force=True)
    assert env.exec_command("true")[0] == -1
    assert {branch.status for branch in env.list_branches()} == {"unknown"}
    assert saved in env.stats.print_size_details()
    assert not env.restore(saved)
    assert env.fork(saved, n=2) == []
    assert (env.sync_snapshot_tree(), env.snapshot(), env.park_branch("nobody")) == (0, None, None)
    assert not env.copy_in(tmp_path, "/var/tmp/copied")
    assert env.cleanup()
    assert attached.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_was_never_recorded_is_found_and_removed(
    state_dir: Path, workspace: Path, tmp_path: Path
) -> None:
    directories = {"waypoint_state_dir": str(state_dir), "state_dir": tmp_path}
    env = create_env_manager("waypoint_build", dockerfile_dir=str(workspace), build=False, **directories)
    session = env.core.backend.session  # type: ignore[attr-defined]
    env.core.leave()
    record = tmp_path / env.core.id / "environment.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "branches": {}}))
    assert open_env_manager(env.core.id, state_dir=tmp_path).cleanup()
    with Waypoint(state_dir) as opened:
        assert session.id not in [kept.id for kept in opened.sessions()]


def test_a_missing_session_is_reported_by_name(state_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match="nothing"):
        create_env_manager(
            "waypoint_attach",
            session_id="nothing",
            waypoint_state_dir=str(state_dir),
            state_dir=tmp_path / "environments",
        )
    assert list((tmp_path / "environments").iterdir()) == []


def test_the_agent_loop_of_the_documentation_from_a_dockerfile(
    state_dir: Path, debian: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word as an agent runs it: the task's directory is relative, the activation script is in the image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAYPOINT_STATE_DIR", str(state_dir))
    monkeypatch.setenv("STATEFORK_STATE_DIR", str(tmp_path / "environments"))
    Path("task").mkdir()
    Path("task/Dockerfile").write_text(
        f"FROM {debian}\nENV HOME=/root\n"
        "RUN mkdir -p /app/venv/bin && printf 'VIRTUAL_ENV=/app/venv\\nexport VIRTUAL_ENV PATH=/app/venv/bin:$PATH\\n'"
        " > /app/venv/bin/activate && printf '#!/bin/sh\\necho $MODE' > /app/venv/bin/tool && chmod +x /app/venv/bin/tool\n"
    )
    with create_env_manager(method="ckpt_build", dockerfile_dir="./task") as env:
        env.exec_command("cd /app && . venv/bin/activate && export MODE=debug")
        ready = env.snapshot()
        assert ready is not None
        code, _, _ = env.exec_command("export MODE=a; rm venv/bin/tool; tool")
        assert code == 127
        assert env.restore(ready)
        assert env.exec_command("tool; pwd; echo $VIRTUAL_ENV") == (0, "debug\n/app\n/app/venv\n", "")


def test_two_environments_run_at_once(state_dir: Path, workspace: Path, tmp_path: Path) -> None:
    options = {
        "dockerfile_dir": str(workspace),
        "build": False,
        "waypoint_state_dir": str(state_dir),
        "state_dir": tmp_path / "environments",
    }
    with (
        create_env_manager("ckpt_build", **options) as one,
        create_env_manager("ckpt_build", **options) as other,
    ):
        one.exec_command("echo 1 >/tmp/mine")
        assert other.exec_command("cat /tmp/mine")[0] != 0
        one.cleanup()
        assert other.exec_command("echo here")[1] == "here\n"
    with Waypoint(state_dir) as opened:
        assert opened.sessions() == []
