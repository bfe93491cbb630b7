"""What the tests of the backends share: engines and base images, made once for the run."""

import secrets
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from contract.containers import Engine, Options, write_dockerfile
from statefork.benchmark.docker_daemon import docker_daemon
from support.base_image import base_tar
from support.engines import docker, podman
from waypoint.kernel.storage.mounts import detach_all


@pytest.fixture(scope="module")
def docker_host() -> Iterator[str]:
    """A daemon with the image ``base``; DOCKER_HOST is its address.

    It holds copies of all mounts of the host, so other tests cannot unmount a pool while it runs.
    """
    with docker_daemon(Path("/dev/shm")) as host, pytest.MonkeyPatch.context() as environment:
        environment.setenv("DOCKER_HOST", host)
        docker("import", str(base_tar()), "base")
        yield host


@pytest.fixture(scope="session")
def podman_storage() -> Iterator[Path]:
    """A storage of podman with the image ``localhost/base``."""
    storage = Path(f"/dev/shm/statefork-podman-{secrets.token_hex(4)}")
    storage.mkdir()
    podman(storage, "import", "--quiet", str(base_tar()), "localhost/base")
    yield storage
    # `podman system reset` would remove what all podmans of the host share.
    podman(storage, "rmi", "--all", "--force")
    detach_all(storage / "root/overlay")
    shutil.rmtree(storage)


@pytest.fixture(scope="session")
def podman_engine(podman_storage: Path) -> Engine:
    return partial(podman, podman_storage)


@pytest.fixture(scope="class")
def podman_options(podman_storage: Path, tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Options for an environment of podman, alone or with CRIU."""
    tmp_path = tmp_path_factory.mktemp("podman")
    return {
        "dockerfile_dir": write_dockerfile(tmp_path / "base", "FROM localhost/base"),
        "extra_args": ["--network=none"],
        "storage": str(podman_storage),
        "state_dir": tmp_path / "environments",
    }
