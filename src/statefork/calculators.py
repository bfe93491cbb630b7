"""What snapshots take on disk: those of an environment, and, under the published names, directories and images.

A calculator is a function that returns the sizes of what is stored now, in bytes, by name;
:meth:`BenchmarkStats.attach_size_calculator` takes any such function. The classes here are such functions with a name
of their own.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from statefork.backend import Backend, Image
from statefork.errors import StateForkError, WrongUse

if TYPE_CHECKING:
    from statefork.backends.containers.engine import Engine

__all__ = [
    "Calculator",
    "FileSizeCalculator",
    "GvisorCalculator",
    "ImageCalculator",
    "WaypointCalculator",
    "snapshot_sizes",
]

STORAGE, FILESYSTEM, MEMORY = "STORAGE", "FILESYSTEM", "MEMORY"
_LABELS = {"files": FILESYSTEM, "disk": FILESYSTEM, "memory": MEMORY, "state": MEMORY}
"""The label for each part of an image, where a backend keeps both files and memory."""


def snapshot_sizes(backend: Backend, images: Mapping[str, Image]) -> dict[str, dict[str, int]]:
    """What each snapshot takes: as a whole, or its files and its memory where the backend keeps both apart."""
    keeps_both = backend.capabilities.files and backend.capabilities.memory
    found: dict[str, dict[str, int]] = {STORAGE: {}, FILESYSTEM: {}, MEMORY: {}}
    for snapshot_id, image in images.items():
        for kind, size in _sizes(backend, image).items():
            label = _LABELS.get(kind.partition("-")[0], STORAGE) if keeps_both else STORAGE
            found[label][snapshot_id] = found[label].get(snapshot_id, 0) + size
    return found


def _sizes(backend: Backend, image: Image) -> Mapping[str, int]:
    try:
        return backend.image_sizes(image)
    except StateForkError:  # its daemon or session no longer exists: what was known when it was made
        return image.sizes


class Calculator(ABC):
    """Returns the sizes of something; ``name`` labels its numbers."""

    def __init__(self, name: str = STORAGE) -> None:
        self.name = name

    def __call__(self) -> dict[str, int]:
        return dict(self._collect())

    @abstractmethod
    def _collect(self) -> list[tuple[str, int]]:
        """What is stored now: names and bytes."""


class FileSizeCalculator(Calculator):
    """What is in a directory: each file, and each directory with all below it."""

    def __init__(self, root_dir: str | Path) -> None:
        super().__init__()
        self.root_dir = Path(root_dir).absolute()

    def _collect(self) -> list[tuple[str, int]]:
        if not self.root_dir.is_dir():
            return []
        return [(entry.name, _apparent_bytes(entry)) for entry in sorted(self.root_dir.iterdir())]


class WaypointCalculator(Calculator):
    """One part, such as ``upper`` or ``criu``, of everything in a directory of checkpoints."""

    def __init__(self, root_dir: str | Path, sub_dir: str, name: str = STORAGE) -> None:
        super().__init__(name)
        self.root_dir = Path(root_dir).absolute()
        self.sub_dir = sub_dir

    def _collect(self) -> list[tuple[str, int]]:
        found = sorted(self.root_dir.glob(f"*/{self.sub_dir}"))
        return [(path.relative_to(self.root_dir).parts[0], _apparent_bytes(path)) for path in found]


class ImageCalculator(Calculator):
    """The images of a repository, each with what it adds to the one below it; ``cli`` is ``docker`` or ``podman``."""

    def __init__(self, cli: str, repo: str) -> None:
        super().__init__()
        self._engine = _engine(cli)
        self.repo = repo

    def _collect(self) -> list[tuple[str, int]]:
        tags = self._engine.ask(
            "images", "images", "--filter", f"reference={self.repo}:*", "--format", "{{.Tag}}"
        )
        return [(tag, self._engine.added_bytes(f"{self.repo}:{tag}")) for tag in dict.fromkeys(tags.split())]


class GvisorCalculator(FileSizeCalculator):
    """The checkpoints that docker has taken of a container, with whatever runtime it has."""

    def __init__(self, container_name: str) -> None:
        from statefork.backends.containers.docker_engine import DockerEngine

        engine = DockerEngine.of("docker", os.environ.get("DOCKER_HOST"))
        found = engine.find(container_name)
        if found is None:
            raise WrongUse(f"no container {container_name!r}", hint="docker ps --all")
        super().__init__(engine.data_root() / "containers" / found.id / "checkpoints")


def _engine(cli: str) -> "Engine":
    from statefork.backends.containers.docker_engine import DockerEngine
    from statefork.backends.containers.podman_engine import PodmanEngine

    if cli == "docker":
        return DockerEngine.of(cli, os.environ.get("DOCKER_HOST"))
    if cli == "podman":
        return PodmanEngine.of(cli, None)
    raise WrongUse(f"no container engine {cli!r}", hint="docker or podman")


def _apparent_bytes(path: Path) -> int:
    """As ``du -sb`` counts."""
    below = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return sum(entry.lstat().st_size for entry in (path, *below))
