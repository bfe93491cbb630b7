"""Podman keeps the contract, with the files alone."""

import socket
from pathlib import Path

import pytest

from contract.containers import Engine, EngineContract, Options, holdings
from statefork import ForkableEnvironmentManager, create_env_manager, open_env_manager

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="session")
def engine(podman_engine: Engine) -> Engine:
    return podman_engine


@pytest.fixture(scope="class")
def options(podman_options: Options) -> Options:
    return podman_options


class TestPodman(EngineContract):
    kind = "podman"
    base = "localhost/base"
    package = "podman"


def test_main_has_the_published_port_and_no_fork_has_it(options: Options, engine: Engine) -> None:
    """On an internal network, so that nothing in the host's own network changes."""
    port = free_port()
    engine("network", "create", "--internal", "--disable-dns", f"statefork-test-{port}")
    published = [f"--network=statefork-test-{port}", "-p", f"{port}:80"]
    try:
        with create_env_manager("podman_build", **{**options, "extra_args": published}) as env:
            assert isinstance(env, ForkableEnvironmentManager)
            saved = env.snapshot()
            assert saved is not None
            assert env.restore(saved), "main's successor has the port that main had"
            assert ports_of(env, "main", engine) == str(port)
            [fork] = env.fork(saved)
            assert ports_of(env, fork.id, engine) not in ("", str(port))
    finally:
        engine("network", "rm", f"statefork-test-{port}")


def test_a_storage_with_a_relative_path_is_found_from_any_directory(
    options: Options, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Path(options["storage"])
    before = holdings(engine, options)
    monkeypatch.chdir(storage.parent)
    env = create_env_manager("podman_build", **{**options, "storage": f"./{storage.name}"})
    assert env.snapshot() is not None
    env.core.leave()
    monkeypatch.chdir("/")
    assert open_env_manager(env.core.id, state_dir=options["state_dir"]).cleanup()
    assert holdings(engine, options) == before


def ports_of(env: ForkableEnvironmentManager, branch: str, engine: Engine) -> str:
    container = str(env.core.branch(branch).instance.handle["container"])
    return engine("port", container, "80/tcp").rpartition(":")[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
