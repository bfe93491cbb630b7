"""The docker client, and the daemon that it connects to."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from statefork.backend import Availability
from statefork.backends.containers.engine import BUILD_TIMEOUT_S, Engine, callers_environment
from statefork.errors import BackendFailed

__all__ = ["DockerEngine"]

PROBE_TIMEOUT_S = 20.0


class DockerEngine(Engine):
    name = "docker"
    package = "docker.io"

    def __init__(self, backend: str, environ: Mapping[str, str]) -> None:
        super().__init__(backend, (self.name,), callers_environment(environ))

    @classmethod
    def of(cls, backend: str, host: str | None) -> "DockerEngine":
        """Use the daemon that is named, else the host's, whatever DOCKER_HOST says now."""
        environ = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
        return cls(backend, {**environ, "DOCKER_HOST": host} if host else environ)

    @classmethod
    def probe(cls, host: str | None = None) -> Availability:
        """Whether the client can be used, and the daemon that is named, else the caller's."""
        program = shutil.which(cls.name)
        if program is None:
            return Availability(
                is_available=False, reason="no program 'docker'", remedy=f"apt-get install {cls.package}"
            )
        try:
            environ = {**os.environ, "DOCKER_HOST": host} if host else os.environ
            version = cls("docker", environ).ask(
                "version", "version", "--format", "{{.Server.Version}}", timeout_s=PROBE_TIMEOUT_S
            )
        except BackendFailed as error:
            remedy = "start the docker daemon, or name its address in DOCKER_HOST"
            return Availability(is_available=False, reason=error.reason, remedy=remedy)
        return Availability(is_available=True, detail=f"docker {version}")

    def build(self, image: str, directory: str) -> None:
        self.ask(
            *("build", "build", "--force-rm", "-t", image, directory),
            timeout_s=BUILD_TIMEOUT_S,
            env={"BUILDKIT_PROGRESS": "plain", **self._builder()},
        )

    def _builder(self) -> Mapping[str, str]:
        """A client without its builder plugin refuses to build, unless it is set to use the daemon's old builder."""
        try:
            self.ask("buildx", "buildx", "version", timeout_s=PROBE_TIMEOUT_S)
        except BackendFailed:
            return {"DOCKER_BUILDKIT": "0"}
        return {}

    def launch(self, verb: str, *words: str) -> None:
        self.ask(verb, verb, *words)

    def commit(self, container: str, image: str) -> None:
        self.ask("commit", "commit", container, image)

    def added_bytes(self, image: str) -> int:
        layers = self.ask("history", "history", "--human=false", "--format", "{{.Size}}", image)
        return int(layers.split()[0])

    def remove_container(self, container: str) -> None:
        self.remove("rm", "rm", "--force", "--volumes", container)

    def data_root(self) -> Path:
        return Path(self.ask("info", "info", "--format", "{{.DockerRootDir}}"))

    def is_experimental(self) -> bool:
        return self.ask("info", "info", "--format", "{{.ExperimentalBuild}}") == "true"
