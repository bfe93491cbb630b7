"""Docker with its experimental checkpoints: files by ``docker commit``, processes by CRIU.

The daemon starts CRIU: a program ``criu`` that works must be on *its* PATH, and ``experimental`` must be on. It takes no
directory for checkpoints but its own, so they are copied from there and back: the daemon must be on this host.
"""

import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from statefork.backend import Availability, Image, Instance
from statefork.backends.containers.container import ContainerOptions, container_of
from statefork.backends.containers.docker_engine import DockerEngine
from statefork.backends.containers.live_container import LiveContainerBackend
from statefork.backends.processes.criu_program import reason_in_log
from statefork.branches import MAIN
from statefork.errors import BackendFailed, BackendUnavailable, Unsupported

__all__ = ["DockerCheckpointBackend"]

CHECKPOINT = "statefork"


class DockerCheckpointBackend(LiveContainerBackend):
    name = "docker"
    engine: DockerEngine

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        checkpoint: bool = True,
        docker_host: str | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        if options.get("container_name") is not None:
            raise Unsupported(
                self.name, "attach with checkpoint=True", hint="leave it out, or use hybrid_attach"
            )
        super().__init__(home, tag, DockerEngine.of(self.name, docker_host), **options)
        # The daemon stores a checkpoint by its content while it starts it, and refuses to store it twice.
        self._starting = threading.Lock()

    @classmethod
    def probe(cls) -> Availability:
        return DockerEngine.probe()

    def start(self, branch_id: str) -> Instance:
        if not self.engine.is_experimental():
            remedy = 'set "experimental": true in /etc/docker/daemon.json and restart the daemon'
            raise BackendUnavailable(self.name, "checkpoints are off in the daemon", remedy=remedy)
        if not (self.engine.data_root() / "containers").is_dir():
            raise BackendUnavailable(self.name, "with checkpoint=True the daemon must be on this host")
        return super().start(branch_id)

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        container = container_of(instance)
        image = self._image_name(snapshot_id)
        processes = self._processes(snapshot_id)
        self._stop(container)
        try:
            self.engine.commit(container, image)
            self._copy_checkpoint_out(container, processes)
        except BaseException:
            self._resume(container)
            self._remove(image, processes)
            raise
        saved = Image(id=snapshot_id, handle={"image": image})
        try:
            self._resume(container)
        except BackendFailed:
            self._replace_by_saved(saved, container)
        sizes = {"files": self.engine.added_bytes(image), "memory": _size(processes)}
        return replace(saved, sizes=sizes)

    def spawn(self, image: Image, branch_id: str) -> Instance:
        name = self._new_name(branch_id)
        self._restore_into(image, name, self._arguments(branch_id))
        return Instance(id=name, handle={"container": name})

    def _restore_stand_in(self, image: Image, container: str, stand_in: str) -> None:
        self._restore_into(image, stand_in, self._arguments(MAIN if self._is_of(container, MAIN) else ""))

    def _restore_into(self, image: Image, container: str, arguments: Sequence[str]) -> None:
        try:
            self.engine.launch(
                "create", "--name", container, "--user", "0", *arguments, str(image.handle["image"])
            )
            self._copy_checkpoint_in(container, self._processes(image.id))
            self._resume(container)
            self._wait_for_init(container)
        except BaseException:
            self.engine.remove_container(container)
            raise

    def delete(self, image: Image) -> None:
        self._remove(str(image.handle["image"]), self._processes(image.id))

    def _remove(self, image: str, processes: Path) -> None:
        self.engine.remove_image(image)
        if processes.exists():
            shutil.rmtree(processes)

    def _set_aside(self, instance: Instance) -> None:
        self._stop(container_of(instance))

    def _bring_back(self, instance: Instance) -> None:
        self._resume(container_of(instance))

    # -- the daemon's checkpoints

    def _stop(self, container: str) -> None:
        """Save the processes where the daemon keeps them, and end them."""
        self._remove_checkpoint(container)  # what a killed caller has left
        self._ask_criu("checkpoint", "checkpoint", "create", container, CHECKPOINT)

    def _resume(self, container: str) -> None:
        with self._starting:
            self._ask_criu("restore", "start", "--checkpoint", CHECKPOINT, container)
        self._remove_checkpoint(container)

    def _remove_checkpoint(self, container: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._checkpoint_directory(container))

    def _is_stopped_by_snapshot(self, container: str) -> bool:
        return self._checkpoint_directory(container).is_dir()

    def _ask_criu(self, operation: str, *words: str) -> None:
        try:
            self.engine.ask(operation, *words)
        except BackendFailed as error:
            raise BackendFailed(self.name, operation, reason_in_log(error.reason)) from error

    def _checkpoint_directory(self, container: str) -> Path:
        found = self.engine.find(container)
        identity = "" if found is None else found.id
        return self.engine.data_root() / "containers" / identity / "checkpoints" / CHECKPOINT

    def _copy_checkpoint_out(self, container: str, target: Path) -> None:
        try:
            shutil.copytree(self._checkpoint_directory(container), target, symlinks=True)
        except OSError as error:
            raise BackendFailed(self.name, "snapshot", str(error)) from error

    def _copy_checkpoint_in(self, container: str, source: Path) -> None:
        try:
            shutil.copytree(source, self._checkpoint_directory(container), symlinks=True)
        except OSError as error:
            raise BackendFailed(self.name, "restore", str(error)) from error

    def _processes(self, snapshot_id: str) -> Path:
        return self.home / "processes" / snapshot_id


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
