"""Docker keeps the contract: the files alone, and everything with checkpoints."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from contract.containers import ContainerContract, Engine, EngineContract, Options, write_dockerfile
from contract.environment import run
from statefork import EnvironmentManager, create_env_manager, open_env_manager
from statefork.backends.containers.container import ContainerBackend
from statefork.backends.containers.docker_checkpoint import DockerCheckpointBackend
from statefork.errors import BackendFailed, BackendUnavailable, Unsupported
from support.engines import docker
from support.waiting import wait_for
from waypoint.kernel.processes.programs import Popen

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def engine(docker_host: str) -> Engine:
    return docker


@pytest.fixture(scope="class")
def options(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Options:
    tmp_path = tmp_path_factory.mktemp("docker")
    return {
        "dockerfile_dir": write_dockerfile(tmp_path / "base", "FROM base"),
        "extra_args": ["--network=none"],
        "state_dir": tmp_path / "environments",
    }


class TestDocker(EngineContract):
    kind = "docker"
    base = "base"
    package = "docker.io"


class TestDockerWithCheckpoints(ContainerContract):
    kind = "docker"
    base = "base"
    package = "docker.io"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, options: Options) -> Options:
        return {**options, "checkpoint": True}

    def test_leftovers_of_containerd_are_in_the_daemons_temporary_directory(
        self, env: EnvironmentManager, docker_host: str
    ) -> None:
        env.core.snapshot()
        scratch = Path("/dev/shm", Path(docker_host).parent.name, "tmp")
        assert list(scratch.glob("ctrd-checkpoint*"))

    @pytest.fixture
    def failing(self, env: EnvironmentManager, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
        """The containers whose processes the daemon fails to restore; all of them if ``*`` is in the set."""
        backend = env.core.backend
        assert isinstance(backend, DockerCheckpointBackend)
        real, names = backend._ask_criu, set[str]()

        def fail(operation: str, *words: str) -> None:
            if operation == "restore" and not names.isdisjoint({"*", words[-1]}):
                raise BackendFailed("docker", operation, "not today")
            real(operation, *words)

        with monkeypatch.context() as changed:
            changed.setattr(backend, "_ask_criu", fail)
            yield names

    def test_a_container_that_cannot_resume_is_restored_from_the_snapshot(
        self, env: EnvironmentManager, engine: Engine, failing: set[str]
    ) -> None:
        container = str(env.core.branch().instance.handle["container"])
        failing.add(container)
        run(env, "cd /var/tmp && x=1")
        saved = env.core.snapshot().snapshot_id
        assert run(env, "echo $x $PWD") == "1 /var/tmp\n"
        assert engine("container", "inspect", "--format", "{{.State.Running}}", container) == "true"
        failing.clear()
        env.core.restore(saved)

    def test_a_container_that_can_neither_resume_nor_be_restored_is_kept(
        self, env: EnvironmentManager, engine: Engine, failing: set[str]
    ) -> None:
        run(env, "cd /var/tmp && x=1")
        saved = env.core.snapshot().snapshot_id
        run(env, "echo precious > /var/tmp/file")
        container = str(env.core.branch().instance.handle["container"])
        failing.add("*")
        before = set(engine("images", "-q").split())
        with pytest.raises(BackendFailed, match=f"{container} has stopped") as failure:
            env.core.snapshot()
        assert f"docker start {container}" in failure.value.hint
        assert engine("container", "inspect", "--format", "{{.State.Running}}", container) == "false"
        assert set(engine("images", "-q").split()) == before
        engine("start", container)
        assert engine("exec", container, "cat", "/var/tmp/file") == "precious"
        failing.clear()
        env.core.restore(saved)
        assert run(env, "echo $x $PWD") == "1 /var/tmp\n"


def test_a_missing_daemon_is_reported_and_docker_host_chooses_another(
    options: Options, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/statefork-no-such-daemon.sock")
    with pytest.raises(BackendUnavailable, match="statefork-no-such-daemon") as failure:
        create_env_manager("docker_build", **options)
    assert "DOCKER_HOST" in failure.value.hint
    with create_env_manager("docker_build", docker_host=docker_host, **options) as env:
        assert env.exec_command("echo named")[1] == "named\n"


def test_an_environment_is_opened_again_at_its_own_daemon(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = create_env_manager("docker_build", **options)
    env.core.leave()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("DOCKER_HOST", "unix:///run/statefork-no-such-daemon.sock")
        with open_env_manager(env.core.id, state_dir=options["state_dir"]) as again:
            assert again.exec_command("echo here")[:2] == (0, "here\n")


def test_a_base_image_may_have_any_name(options: Options, engine: Engine) -> None:
    for name in ("statefork-test", "localhost:5000/statefork-test/app", "statefork-test:v1"):
        with create_env_manager("docker_build", base_image=name, **options) as env:
            saved = env.snapshot()
            assert saved is not None
            assert env.restore(saved)
        assert engine("images", "--format", "{{.ID}}", name) != "", "a name that the caller chose must stay"
        assert engine("images", "--format", "{{.ID}}", f"--filter=reference={name}:*statefork-*") == ""
        engine("rmi", name)


def test_output_and_errors_are_separate_and_a_timeout_ends_the_command_inside(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_env_manager("docker_build", **options) as env:
        assert isinstance(env.core.backend, ContainerBackend)
        start = env.core.backend.engine._start_client

        def start_and_wait(
            container: str, words: Sequence[str], out: IO[bytes], err: IO[bytes]
        ) -> "Popen[bytes]":
            client = start(container, words, out, err)
            wait_for(lambda: b"begun\n" in os.pread(out.fileno(), 100, 0))
            return client

        assert env.exec_command("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
        assert env.exec_command(["no-such-program"])[0] == 127
        with monkeypatch.context() as late:
            late.setattr(env.core.backend.engine, "_start_client", start_and_wait)
            code, output, _ = env.exec_command("echo begun; sleep 4242; true", timeout=0.5)
        assert (code, output) == (-2, "begun\n")
        # a killed process needs a moment to end
        wait_for(lambda: env.exec_command("pgrep -f '^sleep 4242'")[1] == "")
        assert env.exec_command("x" * 200_000)[0] == -1, "longer than an argument may be"
        assert env.exec_command("echo here")[1] == "here\n"


def test_attaching_with_checkpoints_is_refused(options: Options) -> None:
    with pytest.raises(Unsupported, match="attach"):
        create_env_manager(
            "docker_attach", container_name="any", checkpoint=True, state_dir=options["state_dir"]
        )
