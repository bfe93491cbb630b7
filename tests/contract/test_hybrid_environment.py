"""Podman with CRIU keeps the whole contract."""

from pathlib import Path

import pytest

from contract.containers import Engine, EngineContract, Options, write_dockerfile
from contract.environment import run
from statefork import EnvironmentManager, ForkableEnvironmentManager, create_env_manager
from statefork.backends.hybrid import HybridBackend
from statefork.errors import BackendFailed

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="session")
def engine(podman_engine: Engine) -> Engine:
    return podman_engine


@pytest.fixture(scope="class")
def options(podman_options: Options) -> Options:
    return podman_options


class TestHybrid(EngineContract):
    kind = "hybrid"
    base = "localhost/base"
    package = "podman"

    def test_a_container_that_cannot_resume_is_restored_from_the_snapshot(
        self, env: ForkableEnvironmentManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = env.core.backend
        assert isinstance(backend, HybridBackend)
        real = backend._criu

        def fail_in_place(verb: str, *words: str, closes_connections: bool = False) -> None:
            if verb == "restore" and "--import" not in words:
                raise BackendFailed("hybrid", verb, "not today")
            real(verb, *words, closes_connections=closes_connections)

        run(env, "cd /var/tmp && x=1")
        with monkeypatch.context() as failing:
            failing.setattr(backend, "_criu", fail_in_place)
            saved = env.snapshot()
        assert saved is not None
        assert run(env, "echo $x $PWD") == "1 /var/tmp\n"
        assert env.restore(saved)

    def test_a_restored_container_still_has_its_history(
        self, foreign_container: str, options: Options, monkeypatch: pytest.MonkeyPatch, leaves_nothing: None
    ) -> None:
        first = self.attach(foreign_container, options)
        with monkeypatch.context() as failing:
            failing.setattr(HybridBackend, "_resume", refuse_restore)
            saved = first.core.snapshot().snapshot_id
        run(first, "echo here")
        first.core.leave()
        with self.attach(foreign_container, options) as second:
            assert (second.core.id, second.list_snapshots()) == (first.core.id, [saved])

    def test_a_container_that_can_neither_resume_nor_be_restored_is_kept(
        self, env: ForkableEnvironmentManager, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = env.core.backend
        assert isinstance(backend, HybridBackend)
        real = backend._criu

        def fail(verb: str, *words: str, closes_connections: bool = False) -> None:
            if verb == "restore":
                raise BackendFailed("hybrid", verb, "not today")
            real(verb, *words, closes_connections=closes_connections)

        run(env, "cd /var/tmp && x=1")
        saved = env.core.snapshot().snapshot_id
        container = str(env.core.branch().instance.handle["container"])
        with monkeypatch.context() as failing:
            failing.setattr(backend, "_criu", fail)
            with pytest.raises(BackendFailed, match=f"{container} has stopped") as failure:
                env.core.snapshot()
        assert f"podman start {container}" in failure.value.hint
        assert engine("container", "inspect", "--format", "{{.State.Running}}", container) == "false"
        env.core.restore(saved)
        assert run(env, "echo $x $PWD") == "1 /var/tmp\n"

    def test_a_restored_container_cannot_be_attached_to_again(
        self, foreign_container: str, options: Options, leaves_nothing: None
    ) -> None:
        """CRIU can save what is added to such a container, but then fails to restore the whole."""
        with self.attach(foreign_container, options) as attached:
            run(attached, "echo 1 > /var/tmp/mine")
            attached.core.snapshot()
        with pytest.raises(BackendFailed, match="restored from a checkpoint") as failure:
            self.attach(foreign_container, options)
        assert f"podman restart {foreign_container}" in failure.value.hint

    def test_a_failed_snapshot_says_why_and_the_container_keeps_running(
        self, env: EnvironmentManager
    ) -> None:
        run(env, f"x=1; {UNREAD}\nuntil [ -e /var/tmp/asked ]; do :; done")
        with pytest.raises(BackendFailed, match=r"checkpoint failed: .*data to read"):
            env.core.snapshot()
        run(env, "kill %1; wait")
        assert env.snapshot() is not None
        assert run(env, "echo $x") == "1\n"

    def test_connections_inside_keep_working_in_every_branch(self, env: ForkableEnvironmentManager) -> None:
        run(env, f"{TALKING}\nuntil [ -e /var/tmp/said ]; do :; done")
        saved = env.snapshot()
        assert saved is not None
        [fork] = env.fork(saved)
        for branch in ("main", fork.id):
            run(env, "rm /var/tmp/said; until [ -e /var/tmp/said ]; do :; done", branch)
            assert run(env, "cat /var/tmp/said", branch).startswith("hello")

    def test_a_shell_other_than_bash_survives(self, options: Options, tmp_path: Path) -> None:
        """dash holds /dev/tty, which CRIU alone can neither save nor restore."""
        directory = write_dockerfile(
            tmp_path / "image", "FROM localhost/base", "RUN rm -f /bin/bash /usr/bin/bash"
        )
        with create_env_manager("hybrid_build", **{**options, "dockerfile_dir": directory}) as env:
            run(env, "cd /var/tmp; x=1")
            saved = env.snapshot()
            assert saved is not None
            run(env, "x=2")
            assert env.restore(saved)
            assert run(env, "echo $x $PWD") == "1 /var/tmp\n"

    def test_exports_are_written_to_the_directory_the_caller_chose(
        self, options: Options, tmp_path: Path
    ) -> None:
        kept = tmp_path / "exports"
        with create_env_manager(
            "hybrid_build", export_dir=str(kept), container_name="mine", **options
        ) as env:
            saved = env.snapshot()
            assert [path.name for path in kept.iterdir()] == [f"statefork-{env.core.id}-{saved}.tar"]
            assert str(env.core.branch().instance.handle["container"]).startswith("mine-statefork-")
        assert list(kept.iterdir()) == []


def refuse_restore(_self: HybridBackend, _container: str) -> None:
    raise BackendFailed("hybrid", "restore", "not today")


# CRIU cannot save a socket that holds an unread answer of the kernel.
UNREAD = """python3 -c '
import socket, struct, time
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
kernel.send(struct.pack("=IHHII", 20, 18, 0x301, 1, 0) + bytes(4))
open("/var/tmp/asked", "w").close()
time.sleep(4321)
' >/dev/null 2>&1 &"""

TALKING = """python3 -c '
import socket, time, os
server = socket.create_server(("127.0.0.1", 7777))
one = socket.create_connection(("127.0.0.1", 7777))
other, _ = server.accept()
while True:
    one.sendall(b"hello")
    said = other.recv(99)
    open("/var/tmp/next", "wb").write(said)
    os.rename("/var/tmp/next", "/var/tmp/said")
    time.sleep(0.05)
' >/dev/null 2>&1 &"""
