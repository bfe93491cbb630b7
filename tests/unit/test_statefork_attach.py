"""Attaching, and options of environments that are opened from another directory, with made-up engines."""

import json
from pathlib import Path
from typing import Any

import pytest

from statefork import EnvironmentManager, create_env_manager
from statefork.errors import StateForkError, Unsupported
from statefork.factory import METHODS, backend_class, option_names
from statefork.record import EnvironmentDirectory, EnvironmentRecord, directories, read_record

DOCKER = """#!/bin/sh
at=$DOCKER_TEST_DIR/${DOCKER_HOST##*/}
case "$1" in
version) echo 20.10.24 ;;
container) cat "$at/$3" 2>/dev/null || { echo "Error: No such container: $3" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a docker client whose daemons are directories with a file for each container."""
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_TEST_DIR", str(tmp_path / "daemons"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return tmp_path / "daemons"


def put_container(daemon: Path, name: str, container_id: str) -> None:
    daemon.mkdir(parents=True, exist_ok=True)
    state = {"Running": True, "Pid": 1, "ExitCode": 0}
    (daemon / name).write_text(json.dumps([{"Id": container_id, "State": state}]))


def attached(state_dir: Path, **options: Any) -> str:
    manager = create_env_manager("docker_attach", container_name="web", state_dir=state_dir, **options)
    assert isinstance(manager, EnvironmentManager)
    manager.core.leave()
    return manager.core.id


def test_the_history_of_a_container_is_found_by_its_id_not_its_name(
    daemons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_container(daemons / "one.sock", "web", "aaaa")
    put_container(daemons / "other.sock", "web", "bbbb")
    state_dir = tmp_path / "state"
    monkeypatch.setenv("DOCKER_HOST", "unix:///one.sock")
    first = attached(state_dir)
    assert attached(state_dir) == first
    monkeypatch.setenv("DOCKER_HOST", "unix:///other.sock")
    second = attached(state_dir)
    assert second != first, "a container of the same name at another daemon"
    assert attached(state_dir, docker_host="unix:///one.sock") == first
    monkeypatch.delenv("DOCKER_HOST")
    assert attached(state_dir, docker_host="unix:///other.sock") == second
    recorded = {path.name: read_record(path).options["docker_host"] for path in directories(state_dir)}
    assert recorded == {first: "unix:///one.sock", second: "unix:///other.sock"}
    put_container(daemons / "other.sock", "web", "cccc")
    assert attached(state_dir, docker_host="unix:///other.sock") not in (first, second)


def test_a_refused_attach_releases_the_record(
    daemons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_container(daemons / "one.sock", "web", "aaaa")
    monkeypatch.setenv("DOCKER_HOST", "unix:///one.sock")
    first = attached(tmp_path / "state")
    with pytest.raises(Unsupported):
        attached(tmp_path / "state", checkpoint=True)
    with pytest.raises(StateForkError, match="damaged"), monkeypatch.context() as patched:
        patched.setattr(EnvironmentDirectory, "load", damaged)
        attached(tmp_path / "state")
    assert attached(tmp_path / "state") == first


def damaged(_self: EnvironmentDirectory) -> EnvironmentRecord:
    raise StateForkError("damaged")


def test_paths_are_recorded_as_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path_options = {
        "storage",
        "export_dir",
        "work_dir",
        "waypoint_state_dir",
        "runtime_root",
        "firecracker_dir",
        "fire_parent_dir",
        "key",
        "checkpoint_dir",
        "vm_dir",
        "api_socket",
    }
    for method in METHODS:
        names = path_options & set(option_names(method, {}))
        settled = backend_class(method).settled(dict.fromkeys(names, "./here"))
        assert settled == dict.fromkeys(names, f"{tmp_path}/here"), method
    firecracker = backend_class("firecracker_build")
    assert firecracker.settled({"fire_binary": "bin/fc"}) == {"fire_binary": f"{tmp_path}/bin/fc"}
    assert firecracker.settled({"fire_binary": "fc", "firecracker_dir": tmp_path}) == {
        "fire_binary": "fc",
        "firecracker_dir": str(tmp_path),
    }
    assert backend_class("podman_build").settled({"storage": None, "command": "./here"}) == {
        "storage": None,
        "command": "./here",
    }
