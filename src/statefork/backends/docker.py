"""Docker: files by ``docker commit``; with ``checkpoint=True`` also processes, by ``docker checkpoint``.

The daemon is the user's: the one that ``docker_host`` or DOCKER_HOST names, or the host's.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from statefork.backend import Availability, Backend
from statefork.backends.containers.container import ContainerBackend, ContainerOptions
from statefork.backends.containers.docker_checkpoint import DockerCheckpointBackend
from statefork.backends.containers.docker_engine import DockerEngine

__all__ = ["DockerBackend"]


class DockerBackend(ContainerBackend):
    name = "docker"

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        checkpoint: bool = False,
        docker_host: str | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        """``checkpoint`` is false here: :meth:`for_options` has chosen the other class if it is true."""
        super().__init__(home, tag, DockerEngine.of(self.name, docker_host), **options)

    @classmethod
    def for_options(cls, options: Mapping[str, object]) -> type[Backend]:
        return DockerCheckpointBackend if options.get("checkpoint") else cls

    @classmethod
    def probe(cls) -> Availability:
        return DockerEngine.probe()

    @classmethod
    def probe_with(cls, options: Mapping[str, object]) -> Availability:
        host = options.get("docker_host")
        return DockerEngine.probe(str(host) if host else None)

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """An environment stays with the daemon it was made with."""
        host = options.get("docker_host") or os.environ.get("DOCKER_HOST")
        return {**super().settled(options), **({"docker_host": host} if host else {})}
