"""What the container backends owe beyond the contract of all: names, attaching, building, ending, saying what failed.

A backend's test file supplies the fixtures ``engine`` (the engine's own command line) and ``options`` (how an
environment is made in the tests).
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
        """For tests that make environments of their own: fail the one that leaks."""
        before = holdings(engine, options)
        yield
        assert holdings(engine, options) == before

    # -- names, and going on

    def test_environments_live_side_by_side_and_another_process_goes_on_with_one(
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
            again.core.backend._set_aside(
                again.core.branch().instance
            )  # by one who was killed while he saved it
            assert run(again, "cat /var/tmp/mine") == "1\n", "it goes on"
        assert again.restore(saved)
        assert [entry.operation for entry in again.stats.entries][:2] == ["container", "exec"]
        assert env.exec_command("cat /var/tmp/mine")[0] != 0
        kept = env.snapshot()
        assert kept is not None
        again.core.backend.spawn(
            again.core.images[saved], "main"
        )  # by one who was killed before it was noted
        assert again.cleanup()
        assert again.core.backend.tag not in engine("ps", "-a", "--format", "{{.Names}}")
        assert run(env, "echo here") == "here\n"
        assert env.restore(kept)

    # -- building

    def test_variables_directory_user_and_service_of_the_image_hold(
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

    def test_a_snapshot_is_as_large_as_what_it_adds(self, env: EnvironmentManager) -> None:
        run(env, "head -c 3000000 /dev/urandom > /var/tmp/large")
        saved = env.snapshot()
        assert saved is not None
        assert 3_000_000 <= sum(env.snapshots[saved].sizes.values()) < 30_000_000


class EngineContract(ContainerContract):
    """What is the same however containers are saved: tried once for each engine."""

    @pytest.fixture
    def theirs(self, engine: Engine, options: Options) -> Iterator[str]:
        """A container that someone else made."""
        name = f"theirs-{secrets.token_hex(4)}"
        arguments = options["extra_args"]
        engine("run", "-d", "-i", "--name", name, "-e", "MADE_BY=them", *arguments, self.base, "sh")
        yield name
        engine("kill", name)
        engine("rm", "-f", name)

    def attach(self, theirs: str, options: Options) -> ForkableEnvironmentManager:
        kept = {name: options[name] for name in ("extra_args", "state_dir", "storage") if name in options}
        if self.kind == "hybrid":
            del kept["extra_args"]
        manager = create_env_manager(f"{self.kind}_attach", container_name=theirs, **kept)
        assert isinstance(manager, ForkableEnvironmentManager)
        return manager

    # -- attaching

    def test_a_container_that_someone_made_is_used_and_left_to_them(
        self, theirs: str, engine: Engine, options: Options, leaves_nothing: None
    ) -> None:
        with self.attach(theirs, options) as attached:
            assert run(attached, "echo $MADE_BY; echo 1 > /var/tmp/mine") == "them\n"
            saved = attached.snapshot()
            assert saved is not None
            assert engine("exec", theirs, "cat", "/var/tmp/mine") == "1"
            run(attached, "echo 2 > /var/tmp/mine")
            [fork] = attached.fork(saved)
            assert run(attached, "cat /var/tmp/mine", fork.id) == "1\n"
            assert attached.restore(saved)
            assert run(attached, "cat /var/tmp/mine; echo $MADE_BY") == "1\nthem\n"
        assert engine("exec", theirs, "cat", "/var/tmp/mine") == "2"
        assert engine("exec", theirs, "ls", "-A", "/var/tmp") == "mine"
        assert engine("exec", theirs, "sh", "-c", "ls -d /.waypoint || true") == ""

    def test_attaching_again_takes_up_the_history(
        self, theirs: str, options: Options, leaves_nothing: None
    ) -> None:
        first = self.attach(theirs, options)
        run(first, "echo 1 > /var/tmp/mine")
        saved = first.snapshot()
        assert saved is not None
        assert first.restore(saved)
        first.core.leave()
        with self.attach(theirs, options) as second:
            assert second.list_snapshots() == [saved]
            assert second.core.id == first.core.id
            run(second, "rm /var/tmp/mine")
            assert second.restore(saved)
            assert run(second, "cat /var/tmp/mine") == "1\n"

    def test_another_container_of_that_name_has_a_history_of_its_own(
        self, theirs: str, engine: Engine, options: Options, leaves_nothing: None
    ) -> None:
        first = self.attach(theirs, options)
        first.core.snapshot()
        first.core.leave()
        engine("kill", theirs)  # it does not end when asked to, and would be waited for
        engine("rm", "-f", theirs)
        engine("run", "-d", "-i", "--name", theirs, *options["extra_args"], self.base, "sh")
        with self.attach(theirs, options) as second:
            assert second.core.id != first.core.id
            assert (second.list_snapshots(), second.current_snapshot) == ([], None)
        assert open_env_manager(first.core.id, state_dir=options["state_dir"]).cleanup()

    def test_a_container_that_is_not_there_cannot_be_attached_to(
        self, options: Options, leaves_nothing: None
    ) -> None:
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

    def test_a_program_that_is_missing_is_named_with_its_package(
        self, options: Options, tmp_path: Path, leaves_nothing: None
    ) -> None:
        with pytest.MonkeyPatch.context() as elsewhere, pytest.raises(BackendUnavailable) as failure:
            elsewhere.setenv("PATH", str(tmp_path))
            create_env_manager(f"{self.kind}_build", **options)
        assert self.package in failure.value.hint
