"""gVisor keeps the contract: a sandbox with our init, saved and restored by runsc."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.environment import EnvironmentContract, discard_other_branches, run
from statefork import (
    EnvironmentManager,
    ForkableEnvironmentManager,
    create_env_manager,
    open_env_manager,
)
from statefork.backends import gvisor
from statefork.errors import BackendFailed, BackendUnavailable, CommandTimedOut, WrongUse
from statefork.published_managers import GvisorAttachManager, GvisorBuildManager
from statefork.runsc_provision import find_runsc, provision_runsc
from support.holdings import held_by
from support.root_directory import base_directory
from support.tiny_root import make_tiny_root
from support.waiting import wait_for
from waypoint.kernel.processes.programs import DEVNULL, run_tool, spawn

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="session")
def rootfs() -> Path:
    provision_runsc(lambda _: None, proxies=dict(os.environ))
    return base_directory()


@pytest.fixture(scope="module")
def shared(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentManager]:
    tmp_path = tmp_path_factory.mktemp("gvisor")
    with make(rootfs, tmp_path) as manager:
        yield manager
        tag = manager.core.backend.tag
    assert held_by(tag) == []
    assert list((tmp_path / "state").iterdir()) == []


@pytest.fixture
def env(shared: EnvironmentManager) -> Iterator[EnvironmentManager]:
    yield shared
    discard_other_branches(shared)


def make(rootfs: Path, tmp_path: Path, **options: object) -> GvisorBuildManager:
    made = create_env_manager("gvisor_build", rootfs=rootfs, state_dir=tmp_path / "state", **options)
    assert isinstance(made, GvisorBuildManager)
    return made


class TestGvisor(EnvironmentContract):
    pass


def test_two_environments_share_nothing_and_end_separately(
    env: EnvironmentManager, rootfs: Path, tmp_path: Path
) -> None:
    with make(rootfs, tmp_path) as other:
        run(env, "echo mine > /var/tmp/whose")
        assert other.exec_command("cat /var/tmp/whose")[0] != 0
        saved = env.snapshot()
    assert saved is not None
    assert run(env, "cat /var/tmp/whose") == "mine\n"
    assert env.restore(saved)


def test_another_process_can_continue_an_environment(rootfs: Path, tmp_path: Path) -> None:
    env = make(rootfs, tmp_path)
    run(env, "cd /var/tmp; x=kept")
    saved = env.snapshot()
    run(env, "x=changed")
    env.core.leave()
    with open_env_manager(env.core.id, state_dir=tmp_path / "state", strict=True) as again:
        assert saved is not None
        assert run(again, "echo $x $PWD") == "changed /var/tmp\n"
        assert again.restore(saved)
        assert run(again, "echo $x") == "kept\n"
        assert again.core.backend.is_alive(again.core.branch().instance)
        pid = again.core.backend.process_id(again.core.branch().instance)
        assert pid is not None
        assert b"runsc-sandbox" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_directories_are_copied_with_modes_and_links(env: EnvironmentManager, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "below").mkdir(parents=True)
    (source / "below/program").write_text("#!/bin/sh\necho ran\n")
    (source / "below/program").chmod(0o755)
    (source / "link").symlink_to("below/program")
    assert env.copy_in(source, "/srv/deep/tree")
    assert run(env, "/srv/deep/tree/link") == "ran\n"
    assert env.copy_out("/srv/deep/tree", tmp_path / "back")
    assert os.readlink(tmp_path / "back/link") == "below/program"
    assert os.access(tmp_path / "back/below/program", os.X_OK)
    assert env.copy_out("/srv/deep/tree/below/program", tmp_path / "program")
    assert os.access(tmp_path / "program", os.X_OK)


def test_a_snapshot_during_a_foreign_exec_is_refused_by_name(
    env: EnvironmentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its image could not be restored, although runsc reports success."""
    instance = env.core.branch().instance
    backend = env.core.backend
    assert isinstance(backend, gvisor.GvisorBackend)
    command = (
        *backend._runsc(instance)._command("exec", instance.id),
        "sh",
        "-c",
        "echo >/var/tmp/up; sleep 1000",
    )
    foreign = spawn(command, stdout=DEVNULL, stderr=DEVNULL)
    run(env, "until [ -e /var/tmp/up ]; do sleep 0.02; done")
    with monkeypatch.context() as impatient:
        impatient.setattr(gvisor, "EXEC_END_TIMEOUT_S", 0.3)
        with pytest.raises(BackendFailed, match="runsc exec"):
            env.core.snapshot()
    run(env, "pkill -f 'sleep 1000'")
    foreign.wait(30)
    saved = env.core.snapshot().snapshot_id
    env.core.restore(saved)


def test_restoring_a_deleted_image_leaves_the_branch_as_it_was(env: EnvironmentManager) -> None:
    run(env, "x=here")
    saved = env.core.snapshot().snapshot_id
    shutil.rmtree(str(env.snapshots[saved].handle["path"]))
    with pytest.raises(BackendFailed, match="restore failed"):
        env.core.restore(saved)
    assert run(env, "echo $x") == "here\n"
    assert len(held_by(env.core.backend.tag)) > 0


def test_a_shared_directory_stays_on_the_host_and_is_in_no_snapshot(rootfs: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    arguments = (
        "-v",
        f"{shared}:/shared",
        "-v",
        f"{shared}:/look:ro",
        "-e",
        "GREETING=hello",
        "-w",
        "/shared",
    )
    with make(rootfs, tmp_path, extra_args=arguments) as env:
        assert run(env, "echo $GREETING $PWD; echo one > note") == "hello /shared\n"
        saved = env.snapshot()
        assert saved is not None
        run(env, "echo two > note")
        assert env.restore(saved)
        assert (shared / "note").read_text() == "two\n"
        assert run(env, "cat /look/note") == "two\n"
        assert env.exec_command("echo x > /look/note")[0] != 0


@pytest.mark.parametrize("words", [("-p", "8000:8000"), ("--privileged",), ("-v", "relative:/x"), ("image",)])
def test_unsupported_arguments_are_refused_and_leave_nothing(
    rootfs: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with pytest.raises(WrongUse, match="extra_args"):
        make(rootfs, tmp_path, extra_args=words)
    assert list((tmp_path / "state").iterdir()) == []


class TestDockerfile:
    """Built by buildah in a separate store, from busybox alone: its shell is ash."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[list[str]]:
        yield ["--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "store-run")]
        shutil.rmtree(tmp_path / "store")

    @pytest.fixture
    def task(self, tmp_path: Path) -> Path:
        make_tiny_root(tmp_path / "task/root")
        return tmp_path / "task"

    def test_the_image_sets_files_variables_directory_and_user(
        self, rootfs: Path, tmp_path: Path, task: Path, store: list[str]
    ) -> None:
        (task / "Dockerfile").write_text(
            "FROM scratch\nCOPY root /\nENV PATH=/bin MODE=image\n"
            "RUN mkdir -m 777 -p /app && echo built > /app/made\nWORKDIR /app\nUSER 1234\n"
        )
        with create_env_manager(
            "gvisor_build", dockerfile_dir=task, store=store, state_dir=tmp_path / "state", strict=True
        ) as env:
            tag = env.core.backend.tag
            assert run(env, "cat made; echo $MODE $PWD; id -u; x=1") == "built\nimage /app\n1234\n"
            saved = env.snapshot()
            assert saved is not None
            run(env, "rm -f made; x=2")
            env.restore(saved)
            assert run(env, "cat made; echo $x") == "built\n1\n"
        assert held_by(tag) == []
        listed = run_tool(("buildah", *store, "containers", "--json"), timeout_s=60).stdout
        assert not json.loads(listed or "null")

    def test_a_build_that_fails_says_why_and_leaves_nothing(
        self, rootfs: Path, tmp_path: Path, task: Path, store: list[str]
    ) -> None:
        (task / "Dockerfile").write_text("FROM scratch\nCOPY missing /\n")
        with pytest.raises(BackendFailed, match="missing"):
            create_env_manager("gvisor_build", dockerfile_dir=task, store=store, state_dir=tmp_path / "state")
        assert list((tmp_path / "state").iterdir()) == []

    def test_a_directory_without_a_dockerfile_is_refused(
        self, rootfs: Path, tmp_path: Path, store: list[str]
    ) -> None:
        with pytest.raises(WrongUse, match="no Dockerfile"):
            create_env_manager(
                "gvisor_build", dockerfile_dir=tmp_path, store=store, state_dir=tmp_path / "state"
            )


def test_a_tar_archive_is_unpacked(rootfs: Path, tmp_path: Path) -> None:
    make_tiny_root(tmp_path / "small")
    run_tool(("tar", "-C", str(tmp_path / "small"), "-cf", str(tmp_path / "small.tar"), "."), timeout_s=60)
    with make(tmp_path / "small.tar", tmp_path) as env:
        assert run(env, "echo here") == "here\n"
    with pytest.raises(WrongUse, match="not a root file system"):
        make(tmp_path / "nothing", tmp_path)


def test_without_runsc_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "find_runsc", lambda: None)
    with pytest.raises(BackendUnavailable, match="runsc") as caught:
        create_env_manager("gvisor_build", rootfs="/", state_dir=tmp_path)
    assert "statefork setup gvisor" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


class TestAttach:
    """A container that someone else runs with runsc, without an init of ours."""

    @pytest.fixture
    def container(self, rootfs: Path, tmp_path: Path) -> Iterator[str]:
        name = f"foreign-{secrets.token_hex(3)}"
        count = "n=0; while :; do n=$((n+1)); echo $n > /var/tmp/n.new; mv /var/tmp/n.new /var/tmp/n; sleep 0.05; done"
        config = {
            "ociVersion": "1.0.2",
            "root": {"path": str(rootfs)},
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "-c", count],
                "cwd": "/",
                "env": ["PATH=/bin"],
            },
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        }
        (tmp_path / "bundle").mkdir()
        (tmp_path / "bundle/config.json").write_text(json.dumps(config))
        self.runsc(tmp_path, "run", "--detach", "--bundle", str(tmp_path / "bundle"), name)
        yield name
        self.runsc(tmp_path, "delete", "--force", name)

    def runsc(self, tmp_path: Path, *words: str) -> None:
        flags = ("--platform=systrap", "--network=none", "--ignore-cgroups", "--overlay2=root:memory")
        program = find_runsc()
        command = (str(program), "--root", str(tmp_path / "runsc"), *flags, *words)
        assert spawn(command, stdout=DEVNULL, stderr=DEVNULL).wait(60) == 0

    @pytest.fixture
    def env(self, container: str, tmp_path: Path) -> Iterator[GvisorAttachManager]:
        made = create_env_manager(
            "gvisor_attach",
            container_name=container,
            runtime_root=tmp_path / "runsc",
            state_dir=tmp_path / "state",
            strict=True,
        )
        assert isinstance(made, GvisorAttachManager)
        with made:
            yield made

    def count(self, env: ForkableEnvironmentManager, branch: str = "main") -> int:
        look = "rm -f /var/tmp/n; until [ -e /var/tmp/n ]; do sleep 0.02; done; cat /var/tmp/n"
        return int(run(env, look, branch))

    def test_an_attached_container_can_be_saved_and_forked_and_is_left_to_its_owner(
        self, env: GvisorAttachManager, container: str, tmp_path: Path
    ) -> None:
        assert "shell" not in env.capabilities.names()
        assert env.exec_command("cd /var/tmp; echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
        run(env, "echo before > /var/tmp/file")
        before = self.count(env)
        saved = env.snapshot()
        assert saved is not None
        run(env, "echo after > /var/tmp/file")
        [fork] = env.fork(saved)
        assert run(env, "cat /var/tmp/file", fork.id) == "before\n"
        assert before <= self.count(env, fork.id) < self.count(env) + 100
        assert env.restore(saved)
        assert run(env, "cat /var/tmp/file") == "before\n"
        tag = env.core.backend.tag
        env.cleanup()
        assert held_by(tag) == []
        with create_env_manager(
            "gvisor_attach",
            container_name=container,
            runtime_root=tmp_path / "runsc",
            state_dir=tmp_path / "state",
            strict=True,
        ) as again:
            assert run(again, "cat /var/tmp/file") == "after\n"

    def test_attaching_again_continues_the_history(
        self, env: GvisorAttachManager, container: str, tmp_path: Path
    ) -> None:
        saved = env.snapshot()
        env.core.leave()
        with create_env_manager(
            "gvisor_attach",
            container_name=container,
            base_image="app:base",
            extra_args=[],
            runtime_root=tmp_path / "runsc",
            state_dir=tmp_path / "state",
        ) as again:
            assert again.list_snapshots() == [saved]
            assert [entry.operation for entry in again.stats.entries] == ["snapshot"]
            assert again.core.id == env.core.id

    def test_another_container_with_the_same_name_has_its_own_history(
        self, env: GvisorAttachManager, container: str, tmp_path: Path
    ) -> None:
        env.core.snapshot()
        env.core.leave()
        self.runsc(tmp_path, "delete", "--force", container)
        self.runsc(tmp_path, "run", "--detach", "--bundle", str(tmp_path / "bundle"), container)
        with create_env_manager(
            "gvisor_attach",
            container_name=container,
            runtime_root=tmp_path / "runsc",
            state_dir=tmp_path / "state",
        ) as again:
            assert again.core.id != env.core.id
            assert (again.list_snapshots(), again.current_snapshot) == ([], None)
        assert open_env_manager(env.core.id, state_dir=tmp_path / "state").cleanup()

    def test_a_timeout_ends_the_command_inside_the_container(self, env: GvisorAttachManager) -> None:
        with pytest.raises(CommandTimedOut):
            env.core.run("echo begun; sleep 4321 & sleep 4321", timeout_s=1.0)
        wait_for(lambda: env.exec_command("pgrep -f '[s]leep 4321' | wc -l")[1].strip() == "0")
        assert env.snapshot() is not None

    def test_a_timeout_ends_the_command_where_there_is_no_shell(self, env: GvisorAttachManager) -> None:
        env.core.run(["rm", "/bin/sh"])
        with pytest.raises(CommandTimedOut):
            env.core.run(["sleep", "4321"], timeout_s=1.0)
        assert env.core.run(["pgrep", "-f", "^sleep 4321"]).exit_code == 1
        assert env.snapshot() is not None

    def test_a_volume_the_container_does_not_have_is_refused_by_name(
        self, container: str, tmp_path: Path
    ) -> None:
        directories = {"runtime_root": tmp_path / "runsc", "state_dir": tmp_path / "state"}
        with pytest.raises(WrongUse, match=f"container '{container}' has no volume /tmp:/tmp"):
            create_env_manager(
                "gvisor_attach", container_name=container, extra_args=["-v", "/tmp:/tmp"], **directories
            )
        assert list((tmp_path / "state").iterdir()) == []

    def test_attaching_to_an_unknown_container_is_refused_by_name(self, rootfs: Path, tmp_path: Path) -> None:
        with pytest.raises(KeyError):
            create_env_manager("gvisor_attach", state_dir=tmp_path / "state")
        with pytest.raises(BackendFailed, match="no container 'nobody'"):
            create_env_manager("gvisor_attach", container_name="nobody", state_dir=tmp_path / "state")
        assert list((tmp_path / "state").iterdir()) == []
