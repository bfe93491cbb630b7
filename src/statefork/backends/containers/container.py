"""Branches as containers, snapshots as images: what docker and podman have in common.

A snapshot is a commit, so it keeps files and nothing else: no process, no shell. Each command runs in a shell of its own.
Everything that the environment makes has its tag in the name, and is found again by it.

Read next: :mod:`statefork.backends.containers.live_container`, where the processes are kept as well.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

from statefork.backend import Backend, Capabilities, Command, CommandResult, Image, Instance
from statefork.backends.containers.engine import ContainerFacts, Engine
from statefork.backends.containers.host_ports import takes_host_ports, without_host_ports
from statefork.backends.containers.run_arguments import as_words
from statefork.backends.processes.exec_files import copy_in, copy_out
from statefork.backends.processes.failures import explained
from statefork.branches import MAIN
from statefork.errors import BackendFailed

__all__ = ["ContainerBackend", "ContainerOptions", "container_of", "is_foreign"]

ATTACHED_IMAGE = "statefork-app:base"
"""Where snapshots of a container that someone else made are kept, unless the caller says otherwise."""

# The first process inherits orphans and must reap them.
_KEEPS_RUNNING = ("sh", "-c", "while :; do sleep 3600 & wait; done")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_FOREIGN = "foreign"


class ContainerOptions(TypedDict, total=False):
    """The options of every backend of containers."""

    dockerfile_dir: str
    base_image: str | None
    extra_args: str | Sequence[str] | None
    command: str | Sequence[str] | None
    container_name: str | None


class ContainerBackend(Backend):
    """The environment in containers of ``engine``.

    ``base_image`` is the name of the built image; it is removed at the end unless the caller chose the name.
    ``extra_args`` go to ``run``; ``command`` is run in the container instead of the image's own.
    """

    capabilities = Capabilities(files=True, live_fork=True, concurrent_branches=True)

    def __init__(
        self,
        home: Path,
        tag: str,
        engine: Engine,
        *,
        dockerfile_dir: str = ".",
        base_image: str | None = None,
        extra_args: str | Sequence[str] | None = None,
        command: str | Sequence[str] | None = None,
        container_name: str | None = None,
    ) -> None:
        super().__init__(home, tag)
        self.engine = engine
        own = ATTACHED_IMAGE if container_name else f"{tag.replace('-', '_')}:base"
        self.base_image = base_image or own
        self._owns_base_image = base_image is None and container_name is None
        self._dockerfile_dir = dockerfile_dir
        self._extra_args = as_words(extra_args)
        self._command = as_words(command)
        self._container_name = container_name
        self._name_prefix = tag

    # -- making and taking over

    def start(self, branch_id: str) -> Instance:
        self._build()
        return self._start_container(self.base_image, branch_id, self._first_command())

    def attach(self) -> Instance:
        """Take over the named container. Remove the one that ``main`` became when it was attached to before."""
        name = self._container_name or ""
        found = self.engine.find(name)
        if found is None or not found.is_running:
            state = "it does not exist" if found is None else f"it has ended with status {found.exit_code}"
            raise BackendFailed(self.name, "attach", f"container {name!r}: {state}")
        for ours in self._containers():
            if self._is_of(ours, MAIN):
                self.engine.remove_container(ours)
        self._remember(found)
        return Instance(id=name, handle={"container": name, _FOREIGN: 1})

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> str | None:
        return str(options.get("container_name"))

    def is_still(self, instance: Instance) -> bool:
        """Another container may have the name by now, here or at another daemon."""
        found = self.engine.find(self._container_name or "")
        return found is not None and self._attached_id.exists() and self._attached_id.read_text() == found.id

    def _remember(self, attached: ContainerFacts | None) -> None:
        if attached is not None:
            self._attached_id.write_text(attached.id)

    @property
    def _attached_id(self) -> Path:
        return self.home / "attached"

    def _build(self) -> None:
        self.engine.build(self.base_image, self._dockerfile_dir)

    def _first_command(self) -> list[str]:
        """The caller's command, else nothing (the image has one), else something that keeps the container up."""
        if self._command:
            return self._command
        settings = self._image_settings(self.base_image)
        return [] if settings.get("Cmd") or settings.get("Entrypoint") else list(_KEEPS_RUNNING)

    def _image_settings(self, image: str) -> dict[str, object]:
        [described] = json.loads(self.engine.ask("inspect", "image", "inspect", image))
        settings: dict[str, object] = described["Config"] or {}
        return settings

    def _start_container(self, image: str, branch_id: str, command: Sequence[str]) -> Instance:
        """Start a container, with the arguments that a branch of that name gets."""
        name = self._new_name(branch_id)
        arguments = self._arguments(branch_id)
        try:
            self.engine.launch("run", "-d", "-i", "--name", name, *arguments, image, *command)
            found = self.engine.find(name)
            if found is None or not found.is_running:
                raise self._ended_at_once(name, 0 if found is None else found.exit_code)
        except BaseException:
            self.engine.remove_container(name)
            raise
        return Instance(id=name, handle={"container": name})

    def _ended_at_once(self, container: str, status: int) -> BackendFailed:
        said = self.engine.ask("logs", "logs", "--tail", "5", container)
        return BackendFailed(
            self.name,
            "run",
            f"the container's command ended at once with status {status}" + (f": {said}" if said else ""),
            hint="give a command that keeps running: command=['sleep', 'infinity']",
        )

    def _new_name(self, branch_id: str) -> str:
        return f"{self._name_prefix}-{_NOT_IN_NAMES.sub('_', branch_id)}-{secrets.token_hex(2)}"

    def _is_of(self, container: str, branch_id: str) -> bool:
        """Whether the name was made for that branch."""
        return container.rpartition("-")[0] == f"{self._name_prefix}-{_NOT_IN_NAMES.sub('_', branch_id)}"

    def _arguments(self, branch_id: str) -> list[str]:
        return self._extra_args if branch_id == MAIN else without_host_ports(self._extra_args)

    # -- saving and going back

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        name = self._image_name(snapshot_id)
        self.engine.commit(container_of(instance), name)
        return Image(id=snapshot_id, handle={"image": name}, sizes={"files": self.engine.added_bytes(name)})

    def spawn(self, image: Image, branch_id: str) -> Instance:
        return self._start_container(str(image.handle["image"]), branch_id, ())

    def replace(self, instance: Instance, image: Image, branch_id: str) -> Instance:
        """Start a new container; if it takes a port of the host, set the old one aside first: both cannot have it."""
        is_in_the_way = branch_id == MAIN and takes_host_ports(self._extra_args) and not is_foreign(instance)
        if not is_in_the_way or not self.is_alive(instance):
            return super().replace(instance, image, branch_id)
        self._set_aside(instance)
        try:
            successor = self.spawn(image, branch_id)
        except BaseException:
            self._bring_back(instance)
            raise
        self.discard(instance)
        return successor

    def _set_aside(self, instance: Instance) -> None:
        self.engine.ask("stop", "stop", "-t", "0", container_of(instance))

    def _bring_back(self, instance: Instance) -> None:
        self.engine.ask("start", "start", container_of(instance))

    def _image_name(self, snapshot_id: str) -> str:
        return f"{repository_of(self.base_image)}:{self.tag}-{snapshot_id}"

    # -- working

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        return self.engine.execute(container_of(instance), command, timeout_s)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        with explained(self.name, "copy_in"):
            copy_in(partial(self.engine.pipe, container_of(instance)), source, path)

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        with explained(self.name, "copy_out"):
            copy_out(partial(self.engine.pipe, container_of(instance)), path, target)

    def is_alive(self, instance: Instance) -> bool:
        found = self.engine.find(container_of(instance))
        return found is not None and found.is_running

    def process_id(self, instance: Instance) -> int | None:
        found = self.engine.find(container_of(instance))
        return found.pid if found is not None and found.is_running else None

    # -- ending

    def discard(self, instance: Instance) -> None:
        """Remove the container; one that someone else made is left as it is."""
        if not is_foreign(instance):
            self.engine.remove_container(container_of(instance))

    def delete(self, image: Image) -> None:
        self.engine.remove_image(str(image.handle["image"]))

    def close(self) -> None:
        for container in self._containers():
            self.engine.remove_container(container)
        kept = self.engine.ask(
            "images",
            *(
                "images",
                "--filter",
                f"reference={self._image_name('*')}",
                "--format",
                "{{.Repository}}:{{.Tag}}",
            ),
        )
        for image in dict.fromkeys(kept.split()):
            self.engine.remove_image(image)
        if self._owns_base_image:
            self.engine.remove_image(self.base_image)

    def _containers(self) -> list[str]:
        """The containers that the environment has made, running or not."""
        prefix = f"{self._name_prefix}-"
        names = self.engine.ask("ps", "ps", "-a", "--filter", f"name={prefix}", "--format", "{{.Names}}")
        return [name for name in names.split() if name.startswith(prefix)]


def container_of(instance: Instance) -> str:
    return str(instance.handle["container"])


def is_foreign(instance: Instance) -> bool:
    """Whether someone else made it."""
    return _FOREIGN in instance.handle


def repository_of(image: str) -> str:
    """The name without its tag or digest: ``host:5000/app:v1`` is ``host:5000/app``."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
