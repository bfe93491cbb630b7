"""Names, arguments and defaults that callers of the published version rely on."""

import io
from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter
from pathlib import Path

import pytest

from statefork import ForkableEnvironmentManager, create_env_manager, open_env_manager
from statefork.backend import Image, Instance
from statefork.backends.memory import MemoryBackend
from statefork.backends.podman import PodmanBackend
from statefork.cli.main import main
from statefork.cli.shell import InteractiveShell
from statefork.errors import SnapshotExists, WrongUse
from statefork.factory import METHODS, option_defaults

PAGE = Path(__file__).parents[2] / "docs/statefork.md"
DIFFERENCES = PAGE.read_text().partition("## What is different")[2]


REQUIRED = Parameter.empty
CHOSEN = None
"""A name that is chosen when the environment is made; see below."""

CONTAINER = {
    "dockerfile_dir": ".",
    "base_image": CHOSEN,
    "extra_args": ["-p", "8000:8000", "-v", "/tmp:/tmp"],
}
ATTACHED_CONTAINER: Mapping[str, object] = {
    "container_name": REQUIRED,
    "base_image": CHOSEN,
    "extra_args": [],
}
WAYPOINT = {"dockerfile_dir": None, "build": True}
ATTACHED_SESSION = {"session_id": REQUIRED, "target_pid": -2}
PUBLISHED: Mapping[str, Mapping[str, object]] = {
    "docker_build": CONTAINER,
    "docker_attach": ATTACHED_CONTAINER,
    "podman_build": CONTAINER,
    "podman_attach": ATTACHED_CONTAINER,
    "criu_build": {"work_dir": "/tmp/statefork_criu", "command": "uvicorn"},
    "criu_attach": {"target_pid": REQUIRED, "work_dir": "/tmp/statefork_criu"},
    "hybrid_build": {
        "container_name": "podman-build",
        "dockerfile_dir": ".",
        "export_dir": "/tmp/statefork_podman",
        "extra_args": ["-p", "8000:8000", "-v", "/tmp:/tmp"],
    },
    "hybrid_attach": {"container_name": REQUIRED, "export_dir": "/tmp/statefork_podman"},
    "ckpt_build": WAYPOINT,
    "waypoint_build": WAYPOINT,
    "ckpt_attach": ATTACHED_SESSION,
    "waypoint_attach": ATTACHED_SESSION,
    "gvisor_build": {"dockerfile_dir": ".", "base_image": CHOSEN, "extra_args": ["-v", "/tmp:/tmp"]},
    "gvisor_attach": {"container_name": REQUIRED, "base_image": CHOSEN, "extra_args": []},
    "firecracker_build": {"firecracker_dir": "/tmp", "inject_dir": "app"},
    "firecracker_attach": {
        "pid": REQUIRED,
        "key": REQUIRED,
        "microvm_ip": "172.16.0.2",
        "tap_dev": "tap0",
        "checkpoint_dir": "/tmp/fire_ckpts",
        "vm_dir": "/tmp/fire_vm",
        "fire_binary": None,
        "api_socket": "/tmp/firecracker.socket",
    },
}

DIFFERENT = {
    ("docker_build", "extra_args"),
    ("podman_build", "extra_args"),
    ("hybrid_build", "extra_args"),
    ("hybrid_build", "export_dir"),
    ("hybrid_attach", "export_dir"),
    ("gvisor_build", "extra_args"),
    ("criu_build", "command"),
    ("criu_attach", "work_dir"),
}
"""What docs/statefork.md lists under "What is different": these options are empty unless the caller sets them."""


@pytest.mark.parametrize("method", PUBLISHED)
def test_every_published_option_has_its_default_or_is_documented_as_different(method: str) -> None:
    ours = option_defaults(method, {})
    for name, default in PUBLISHED[method].items():
        assert name in ours
        if default is REQUIRED:
            assert name in METHODS[method].required
        elif (method, name) in DIFFERENT:
            assert not ours[name]
            assert f"`{name}`" in DIFFERENCES
        else:
            assert (list(ours[name] or ()) if name == "extra_args" else ours[name]) == default


def test_images_have_their_own_name_or_the_published_one(tmp_path: Path) -> None:
    assert PodmanBackend(tmp_path, "statefork-12ab").base_image == "statefork_12ab:base"
    assert PodmanBackend(tmp_path, "any", container_name="web").base_image == "statefork-app:base"


def test_where_only_one_branch_can_run_a_new_environment_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = replace(MemoryBackend.capabilities, concurrent_branches=False)
    monkeypatch.setattr(MemoryBackend, "capabilities", alone)
    with create_env_manager("memory", state_dir=tmp_path) as env:
        assert not isinstance(env, ForkableEnvironmentManager)
        env.exec_command("echo 1 > note")
        saved = env.snapshot()
        assert saved is not None
        env.exec_command("echo 2 > note")
        assert env.create_env_from_snapshot(saved) == "main"
        assert env.exec_command("cat note")[1] == "1\n"
        assert env.create_env_from_snapshot("nothing") is None
        shell = InteractiveShell(env, said := io.StringIO())
        shell.run(iter(["step"]))
        assert "Stepped to new container with snapshot" in said.getvalue()


def test_the_caller_can_choose_the_id_of_a_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = create_env_manager("memory", state_dir=tmp_path, strict=True)
    assert env.core.snapshot(snapshot_id="before-fix").snapshot_id == "before-fix"
    assert env.restore("before-fix")
    with pytest.raises(SnapshotExists, match="'before-fix' exists"):
        env.core.snapshot(snapshot_id="before-fix")
    for impossible in ("", "../up", "current", "a b"):
        with pytest.raises(WrongUse, match="cannot be the id of a snapshot"):
            env.core.snapshot(snapshot_id=impossible)
    assert env.list_snapshots() == ["before-fix"]
    env.core.leave()
    words = ["snapshot", env.core.id, "--state-dir", str(tmp_path), "--id"]
    assert main([*words, "before-fix"]) == 2
    assert "snapshot 'before-fix' exists" in capsys.readouterr().err
    assert open_env_manager(env.core.id, state_dir=tmp_path).cleanup()


def test_the_id_of_a_snapshot_in_progress_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_env_manager("memory", state_dir=tmp_path) as env:
        real = env.core.backend.snapshot

        def meanwhile(instance: Instance, snapshot_id: str) -> Image:
            with pytest.raises(SnapshotExists):
                env.core.snapshot(snapshot_id="ready")
            return real(instance, snapshot_id)

        monkeypatch.setattr(env.core.backend, "snapshot", meanwhile)
        env.core.snapshot(snapshot_id="ready")
        assert env.list_snapshots() == ["ready"]
