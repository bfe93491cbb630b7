"""Podman: files by ``podman commit``. No daemon."""

from pathlib import Path
from typing import Unpack

from statefork.backend import Availability
from statefork.backends.containers.container import ContainerBackend, ContainerOptions
from statefork.backends.containers.podman_engine import PodmanEngine

__all__ = ["PodmanBackend"]


class PodmanBackend(ContainerBackend):
    name = "podman"
    path_options = ("storage",)

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        storage: str | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        super().__init__(home, tag, PodmanEngine.of(self.name, storage), **options)

    @classmethod
    def probe(cls) -> Availability:
        return PodmanEngine.probe()
