"""Podman: no daemon; its state is in a storage directory."""

import json
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from statefork.backend import Availability
from statefork.backends.containers.engine import BUILD_TIMEOUT_S, Engine, callers_environment
from statefork.errors import BackendFailed

__all__ = ["PodmanEngine"]

PROBE_TIMEOUT_S = 20.0
_CAP_SYS_RESOURCE = 24
_NOFILE_WANTED = 1 << 20
_NPROC_MAX = 1 << 15  # podman lowers its own to this before it starts the runtime


class PodmanEngine(Engine):
    """``storage`` is a directory with containers and images of its own; without it they are the host's."""

    name = "podman"
    package = "podman runc"

    def __init__(self, backend: str, environ: Mapping[str, str], storage: Path | None) -> None:
        options = (*_storage_options(storage), *_host_options(environ))
        super().__init__(backend, (self.name, *options), callers_environment(environ))

    @classmethod
    def of(cls, backend: str, storage: str | None) -> "PodmanEngine":
        return cls(backend, os.environ, None if storage is None else Path(storage).absolute())

    @classmethod
    def probe(cls) -> Availability:
        if shutil.which(cls.name) is None:
            return Availability(
                is_available=False, reason="no program 'podman'", remedy=f"apt-get install {cls.package}"
            )
        try:
            version = cls("podman", os.environ, None).ask("version", "--version", timeout_s=PROBE_TIMEOUT_S)
        except BackendFailed as error:
            return Availability(is_available=False, reason=error.reason, remedy="podman info")
        return Availability(is_available=True, detail=version)

    def build(self, image: str, directory: str) -> None:
        self.ask(*("build", "build", *_limits(), "-t", image, directory), timeout_s=BUILD_TIMEOUT_S)

    def launch(self, verb: str, *words: str) -> None:
        self.ask(verb, verb, *_limits(), *words)

    def commit(self, container: str, image: str) -> None:
        self.ask("commit", "commit", "--quiet", "--pause", container, image)

    def added_bytes(self, image: str) -> int:
        layers = json.loads(self.ask("history", "history", "--human=false", "--format", "json", image))
        return int(layers[0]["size"])

    def remove_container(self, container: str) -> None:
        self.remove("rm", "rm", "--force", "--time", "0", "--volumes", container)


def _storage_options(storage: Path | None) -> Iterator[str]:
    if storage is not None:
        yield from ("--root", f"{storage}/root", "--runroot", f"{storage}/run", "--tmpdir", f"{storage}/tmp")


def _host_options(environ: Mapping[str, str]) -> Iterator[str]:
    # crun refuses hosts that have both versions of cgroups, and Debian's cannot checkpoint.
    if shutil.which("runc", path=environ.get("PATH")) is not None:
        yield from ("--runtime", "runc")
    if not os.path.isdir("/run/systemd/system"):
        yield from ("--cgroup-manager", "cgroupfs", "--events-backend", "file")


def _limits() -> Iterator[str]:
    """Limits that we may set: podman's own are higher than a root without CAP_SYS_RESOURCE can give."""
    if _may_raise_limits():
        return
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    for name, hard, most in (("nofile", files, _NOFILE_WANTED), ("nproc", processes, _NPROC_MAX)):
        limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
        yield from ("--ulimit", f"{name}={limit}:{limit}")


def _may_raise_limits() -> bool:
    with open("/proc/self/status") as status:
        capabilities = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    return bool(int(capabilities, 16) >> _CAP_SYS_RESOURCE & 1)
