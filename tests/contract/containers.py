"""What the container backends promise beyond the common contract: names, attaching, building, cleanup, clear errors.

A backend's test file supplies the fixtures ``engine`` (the engine's own command line) and ``options`` (how the
tests make an environment).
"""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.environment import EnvironmentContract, run
from statefork import EnvironmentManager, ForkableEnvironmentManager, create_env_manager, open_env_manager
from statefork.backends.containers.live_container import LiveContainerBackend
from statefork.errors import BackendFailed, BackendUnavailable

__all__ = ["ContainerContract", "Engine", "EngineContract", "Options", "holdings", "write_dockerfile"]

Engine = Callable[..., str]
Options = dict[str, Any]


def write_dockerfile(directory: Path, *lines: str) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text("\n".join(lines) + "\n")
    return str(directory)


def holdings(engine: Engine, options: Options) -> dict[str, list[str]]:
    state_dir = options["state_dir"]
    return {
        "containers": sorted(engine("ps", "-a", "--format", "{{.Names}}").split()),
        "images": sorted(engine("images", "-a", "--format", "{{.ID}}").split()),
        "volumes": sorted(engine("volume", "ls", "-q").split()),
        "files": sorted(map(str, state_dir.iterdir())) if state_dir.exists() else [],
    }


class ContainerContract(EnvironmentContract):
    kind: str
    base: str
    package: str

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, engine: Engine, options: Options) -> Iterator[EnvironmentManager]:
        before = holdings(engine, options)
        with create_env_manager(f"{cls.kind}_build", **options) as manager:
            yield manager
        assert holdings(engine, options) == before

    @pytest.fixture
    def leaves_nothing(self, engine: Engine, options: Options) -> Iterator[None]:
        """For tests that make their own environments: fail the test that leaks."""
        before = holdings(engine, options)
        yield
        assert holdings(engine, options) == before

    # -- names, and continuing in another process

    def test_two_environments_run_at_once_and_another_process_can_continue_one(
        self, env: EnvironmentManager, engine: Engine, options: Options
    ) -> None:
        left = create_env_manager(f"{self.kind}_build", **options)
        run(left, "echo 1 > /var/tmp/mine")
        saved = left.snapshot()
        assert saved is not None
        assert isinstance(left, ForkableEnvironmentManager)
        [fork] = left.fork(saved)
        left.core.leave()
        again = open_env_manager(left.core.id, state_dir=options["state_dir"])
        assert type(again) is type(left)
        assert run(again, "cat /var/tmp/mine", fork.id) == "1\n"
        if isinstance(again.core.backend, LiveContainerBackend):
            # as by a process that was killed while saving it
            again.core.backend._set_aside(again.core.branch().instance)
            assert run(again, "cat /var/tmp/mine") == "1\n", "it does not keep running"
        assert again.restore(saved)
        assert [entry.operation for entry in again.stats.entries][:2] == ["container", "exec"]
        assert env.exec_command("cat /var/tmp/mine")[0] != 0
        kept = env.snapshot()
        assert kept is not None
        # as by a process that was killed before recording it
        again.core.backend.spawn(again.core.images[saved], "main")
        assert again.cleanup()
        assert again.core.backend.tag not in engine("ps", "-a", "--format", "{{.Names}}")
        assert run(env, "echo here") == "here\n"
        assert env.restore(kept)

    # -- building

    def test_the_image_sets_variables_directory_user_and_service(
        self, options: Options, tmp_path: Path, leaves_nothing: None
    ) -> None:
        directory = write_dockerfile(
            tmp_path / "image",
            f"FROM {self.base}",
            "ENV GREETING='hello there' PATH=/opt/own:/usr/bin:/bin",
            "RUN mkdir -p /opt/own && echo 1 > /opt/own/built",
            "WORKDIR /srv/app",
            'CMD ["sleep", "54321"]',
            "USER 1234:4321",
        )
        with create_env_manager(f"{self.kind}_build", **{**options, "dockerfile_dir": directory}) as env:
            seen = 'echo "$GREETING $PWD $PATH"; cat /opt/own/built; id -u; id -g'
            expected = "hello there /srv/app /opt/own:/usr/bin:/bin\n1\n1234\n4321\n"
            running = "until pgrep -x sleep >/dev/null; do :; done; pgrep -ax sleep"
            assert run(env, seen) == expected
            assert run(env, running).endswith("sleep 54321\n")
            saved = env.snapshot()
            assert saved is not None
            assert env.restore(saved)
            assert run(env, seen) == expected
            assert run(env, running).endswith("sleep 54321\n")

    # -- failing

    def test_a_failed_fork_leaves_no_container(self, env: ForkableEnvironmentManager, engine: Engine) -> None:
        saved = env.snapshot()
        assert saved is not None
        env.core.backend.delete(env.core.images[saved])
        before = engine("ps", "-a", "--format", "{{.Names}}")
        assert env.fork(saved) == []
        assert not env.restore(saved)
        assert engine("ps", "-a", "--format", "{{.Names}}") == before
        assert run(env, "echo here") == "here\n"

    def test_the_size_of_a_snapshot_is_what_it_adds(self, env: EnvironmentManager) -> None:
        run(env, "head -c 3000000 /dev/urandom > /var/tmp/large")
        saved = env.snapshot()
        assert saved is not None
        assert 3_000_000 <= sum(env.snapshots[saved].sizes.values()) < 30_000_000


class EngineContract(ContainerContract):
    """What does not depend on how containers are saved: tested once for each engine."""

    @pytest.fixture
    def foreign_container(self, engine: Engine, options: Options) -> Iterator[str]:
        """A container that was made outside StateFork."""
        name = f"theirs-{secrets.token_hex(4)}"
        arguments = options["extra_args"]
        engine("run", "-d", "-i", "--name", name, "-e", "MADE_BY=them", *arguments, self.base, "sh")
        yield name
        engine("kill", name)
        engine("rm", "-f", name)

    def attach(self, foreign_container: str, options: Options) -> ForkableEnvironmentManager:
        kept = {name: options[name] for name in ("extra_args", "state_dir", "storage") if name in options}
        if self.kind == "hybrid":
            del kept["extra_args"]
        manager = create_env_manager(f"{self.kind}_attach", container_name=foreign_container, **kept)
        assert isinstance(manager, ForkableEnvironmentManager)
        return manager

    # -- attaching

    def test_an_attached_container_is_left_to_its_owner(
        self, foreign_container: str, engine: Engine, options: Options, leaves_nothing: None
    ) -> None:
        with self.attach(foreign_container, options) as attached:
            assert run(attached, "echo $MADE_BY; echo 1 > /var/tmp/mine") == "them\n"
            saved = attached.snapshot()
            assert saved is not None
            assert engine("exec", foreign_container, "cat", "/var/tmp/mine") == "1"
            run(attached, "echo 2 > /var/tmp/mine")
            [fork] = attached.fork(saved)
            assert run(attached, "cat /var/tmp/mine", fork.id) == "1\n"
            assert attached.restore(saved)
            assert run(attached, "cat /var/tmp/mine; echo $MADE_BY") == "1\nthem\n"
        assert engine("exec", foreign_container, "cat", "/var/tmp/mine") == "2"
        assert engine("exec", foreign_container, "ls", "-A", "/var/tmp") == "mine"
        assert engine("exec", foreign_container, "sh", "-c", "ls -d /.waypoint || true") == ""

    def test_attaching_again_continues_the_history(
        self, foreign_container: str, options: Options, leaves_nothing: None
    ) -> None:
        first = self.attach(foreign_container, options)
        run(first, "echo 1 > /var/tmp/mine")
        saved = first.snapshot()
        assert saved is not None
        assert first.restore(saved)
        first.core.leave()
        with self.attach(foreign_container, options) as second:
            assert second.list_snapshots() == [saved]
            assert second.core.id == first.core.id
            run(second, "rm /var/tmp/mine")
            assert second.restore(saved)
            assert run(second, "cat /var/tmp/mine") == "1\n"

    def test_another_container_with_the_same_name_has_its_own_history(
        self, foreign_container: str, engine: Engine, options: Options, leaves_nothing: None
    ) -> None:
        first = self.attach(foreign_container, options)
        first.core.snapshot()
        first.core.leave()
        engine("kill", foreign_container)  # it ignores a request to end, so the engine would wait for it
        engine("rm", "-f", foreign_container)
        engine("run", "-d", "-i", "--name", foreign_container, *options["extra_args"], self.base, "sh")
        with self.attach(foreign_container, options) as second:
            assert second.core.id != first.core.id
            assert (second.list_snapshots(), second.current_snapshot) == ([], None)
        assert open_env_manager(first.core.id, state_dir=options["state_dir"]).cleanup()

    def test_attaching_to_a_missing_container_fails(self, options: Options, leaves_nothing: None) -> None:
        with pytest.raises(BackendFailed, match="nobody"):
            self.attach("nobody", options)
        with pytest.raises(KeyError, match="container_name"):
            create_env_manager(f"{self.kind}_attach", state_dir=options["state_dir"])

    # -- failing

    def test_a_build_that_fails_says_why_and_leaves_nothing(
        self, options: Options, tmp_path: Path, leaves_nothing: None
    ) -> None:
        directory = write_dockerfile(
            tmp_path / "image", f"FROM {self.base}", "RUN echo the disk is made of cheese && exit 41"
        )
        with pytest.raises(BackendFailed, match="41") as failure:
            create_env_manager(f"{self.kind}_build", **{**options, "dockerfile_dir": directory})
        assert "the disk is made of cheese" in str(failure.value)
        with pytest.raises(BackendFailed, match="nowhere"):
            create_env_manager(f"{self.kind}_build", **{**options, "dockerfile_dir": f"{tmp_path}/nowhere"})

    def test_a_missing_program_is_reported_with_its_package(
        self, options: Options, tmp_path: Path, leaves_nothing: None
    ) -> None:
        with pytest.MonkeyPatch.context() as elsewhere, pytest.raises(BackendUnavailable) as failure:
            elsewhere.setenv("PATH", str(tmp_path))
            create_env_manager(f"{self.kind}_build", **options)
        assert self.package in failure.value.hint
