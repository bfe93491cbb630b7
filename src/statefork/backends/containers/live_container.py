"""Containers whose processes are part of the state: our init runs in each and owns the shell that commands run in.

In a container of our own it is the first process; in one that someone else made it is added, as a child of the first. It
is reached from the host, through the container's root directory, so nothing of ours is attached to the container when
it is saved.

Read next: :mod:`statefork.backends.hybrid` and :mod:`statefork.backends.containers.docker_checkpoint`, which save it.
"""

import secrets
import shlex
import shutil
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from statefork.agent import Agent
from statefork.backend import EVERYTHING, Command, CommandResult, Image, Instance
from statefork.backends.containers.container import ContainerBackend, container_of
from statefork.errors import BackendFailed
from waypoint.errors import WaypointError
from waypoint.session.context import launcher_path
from waypoint.session.creation.users import ROOT, find_user
from waypoint.shell.client import ShellClient
from waypoint.shell.selection import SHELL_NAMES, find_profile

__all__ = ["LiveContainerBackend"]

INIT = "/.waypoint/init"
INIT_TIMEOUT_S = 20.0
INIT_POLL_S = 0.005  # a socket that is about to appear inside the container: no event says when
SERVICE_LOG = "/.waypoint/service.log"
_SHELLS = (*SHELL_NAMES, "busybox")


class LiveContainerBackend(ContainerBackend):
    capabilities = EVERYTHING

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pids: dict[str, tuple[int, str]] = {}
        self._pids_lock = threading.Lock()

    # -- making

    def start(self, branch_id: str) -> Instance:
        self._build()
        settings = self._image_settings(self.base_image)
        name = self._new_name(branch_id)
        try:
            self.engine.launch(
                *("create", "--name", name, "--user", "0", "--entrypoint", INIT),
                *(*self._arguments(branch_id), self.base_image, "init"),
            )
            self._put_init_into(name)
            self.engine.ask("start", "start", name)
            self._open_shell(name, settings)
            self._start_service(name, settings)
        except BaseException:
            self.engine.remove_container(name)
            raise
        return Instance(id=name, handle={"container": name})

    def _put_init_into(self, container: str) -> None:
        stage = self.home / "stage" / ".waypoint"
        if not stage.exists():
            stage.mkdir(parents=True)
            shutil.copy2(launcher_path(), stage / "init")
            log = stage / PurePosixPath(SERVICE_LOG).name
            log.touch()
            log.chmod(0o666)  # whoever the image's user is
        self.engine.ask("cp", "cp", str(stage), f"{container}:/")

    def _open_shell(self, container: str, settings: Mapping[str, Any]) -> None:
        self._wait_for_init(container)
        root = Path(f"/proc/{self._pid(container)}/root")
        try:
            profile = find_profile(root, None)
            user = find_user(str(root), settings["User"]) if settings.get("User") else ROOT
        except WaypointError as error:
            raise BackendFailed(self.name, "start of the shell", str(error), hint=error.hint) from error
        env = dict(entry.split("=", 1) for entry in settings.get("Env") or ())
        cwd = settings.get("WorkingDir") or "/"
        self._agent(container).open_shell(profile, cwd=cwd, env=env, user=user)

    def _start_service(self, container: str, settings: Mapping[str, Any]) -> None:
        """Start what the image or the caller wants to be run, unless that is only a shell: one runs already."""
        words = self._command or [*(settings.get("Entrypoint") or ()), *(settings.get("Cmd") or ())]
        if not words or (len(words) == 1 and PurePosixPath(words[0]).name in _SHELLS):
            return
        self._agent(container).run(f"( {shlex.join(words)} </dev/null >{SERVICE_LOG} 2>&1 & )", None)

    def _wait_for_init(self, container: str) -> None:
        deadline = time.monotonic() + INIT_TIMEOUT_S
        while True:
            try:
                self._connect(container).close()
                return
            except (WaypointError, OSError) as error:
                if time.monotonic() > deadline:
                    raise BackendFailed(self.name, "start of init", str(error)) from error
            time.sleep(INIT_POLL_S)

    # -- saving

    def _replace_by_saved(self, saved: Image, container: str) -> None:
        """Replace a container that cannot be resumed in place: restore what was just saved, under its name."""
        stand_in = f"{container}-{secrets.token_hex(2)}"
        try:
            self._restore_stand_in(saved, container, stand_in)
        except BackendFailed as error:
            self.delete(saved)
            again = f"{self.engine.name} start {container}"
            raise BackendFailed(
                self.name,
                "snapshot",
                f"container {container} has stopped and cannot be restored: {error.reason}",
                hint=f"restore an earlier snapshot; {again} starts it again, with its files",
            ) from error
        self.engine.remove_container(container)
        self.engine.ask("rename", "rename", stand_in, container)

    @abstractmethod
    def _restore_stand_in(self, image: Image, container: str, stand_in: str) -> None:
        """Restore an image as ``stand_in``, with the same arguments as ``container``, which is stopped."""

    # -- working

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        return self._agent(container_of(instance)).run(command, timeout_s)

    def _agent(self, container: str) -> Agent:
        return Agent(self.name, container, lambda: self._connect(container))

    def _connect(self, container: str) -> ShellClient:
        return ShellClient(f"/proc/{self._pid(container)}/root/.")

    def _pid(self, container: str) -> int:
        """The host's pid of the container's first process. The engine is asked once for each life of the container."""
        with self._pids_lock:
            pid, started = self._pids.get(container, (0, ""))
        if pid and _start_time(pid) == started:
            return pid
        found = self.engine.find(container)
        if found is not None and not found.is_running and self._is_stopped_by_snapshot(container):
            self._resume(container)
            found = self.engine.find(container)
        if found is None or not found.is_running:
            state = "no longer exists" if found is None else f"has ended with status {found.exit_code}"
            raise BackendFailed(
                self.name, "exec", f"container {container} {state}", hint="restore a snapshot"
            )
        with self._pids_lock:
            self._pids[container] = (found.pid, _start_time(found.pid))
        return found.pid

    @abstractmethod
    def _is_stopped_by_snapshot(self, container: str) -> bool:
        """Whether a stopped container was stopped to be saved, and whoever did it was killed before resuming it."""

    @abstractmethod
    def _resume(self, container: str) -> None:
        """Resume, in place, a container that was stopped to be saved."""

    @abstractmethod
    def _set_aside(self, instance: Instance) -> None: ...

    @abstractmethod
    def _bring_back(self, instance: Instance) -> None: ...


def _start_time(pid: int) -> str:
    """What distinguishes this process from a later one of the same pid; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
