"""gVisor: every instance is a sandbox with a kernel of its own, saved and restored by its runtime, runsc.

The root file system is shared by all instances and only read; what an instance changes is kept in its sandbox's
memory. So one image holds memory and files of the same moment, and restoring it under a new name is a fork.

Our init is the first process of a sandbox. It is reached by ``runsc exec``; no such call may be open at a checkpoint.
"""

import dataclasses
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from statefork.agent import Agent
from statefork.backend import EVERYTHING, Availability, Backend, Command, CommandResult, Image, Instance
from statefork.backends.containers.run_arguments import parse_run_arguments
from statefork.backends.processes.exec_files import Execute, copy_in, copy_out
from statefork.backends.processes.failures import explained
from statefork.backends.sandbox.bundle import write_bundle
from statefork.backends.sandbox.rootfs import BuiltRootfs, Rootfs, unpacked
from statefork.backends.sandbox.runsc import (
    OVERLAY_IN_MEMORY,
    Runsc,
    find_sandbox,
    is_sandbox,
    keeps_files,
    working_platform,
)
from statefork.errors import BackendFailed, WrongUse
from statefork.runsc_provision import find_runsc
from waypoint.errors import HostError, WaypointError
from waypoint.kernel.cgroup.group import Cgroup, find_cgroup2
from waypoint.kernel.undo import UndoStack
from waypoint.session.context import launcher_path
from waypoint.shell.profile import SESSION_ENV
from waypoint.shell.selection import find_profile

__all__ = ["GvisorAttachBackend", "GvisorBackend"]

RUNTIME_ROOTS = Path("/run/statefork")  # short: a socket's path must not be longer than 107 bytes
DEFAULT_RUNTIME_ROOT = "/var/run/runsc"
READY_TIMEOUT_S = 30.0
EXEC_END_TIMEOUT_S = 10.0
COPY_TIMEOUT_S = 600.0
REMEDY = "fetch it: statefork setup gvisor (or put a runsc of 2023 or later on the PATH)"


class GvisorBackend(Backend):
    """``rootfs`` is a directory or a tar archive; without it ``dockerfile_dir`` is built by buildah."""

    name = "gvisor"
    capabilities = EVERYTHING

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        dockerfile_dir: str | Path = ".",
        base_image: str | None = None,
        extra_args: str | Sequence[str] = (),
        rootfs: str | Path | None = None,
        store: Sequence[str] = (),
    ) -> None:
        super().__init__(home, tag)
        self._source = None if rootfs is None else Path(rootfs).absolute()
        self._dockerfile_dir = Path(dockerfile_dir).absolute()
        self._arguments = parse_run_arguments(extra_args)
        self._names_image = base_image is not None
        self._build = BuiltRootfs(
            container=tag, image=base_image or f"localhost/{tag}:base", store=tuple(store)
        )
        if self._source is None and not BuiltRootfs.is_possible():
            raise WrongUse(
                "a Dockerfile cannot be built without buildah",
                hint="apt-get install buildah, or give rootfs=",
            )

    @classmethod
    def probe(cls) -> Availability:
        if os.geteuid() != 0:
            return Availability(is_available=False, reason="it needs root", remedy="run with sudo")
        if not launcher_path().exists():
            return Availability(is_available=False, reason="our init was not built", remedy="make install")
        program = find_runsc()
        if program is None:
            return Availability(is_available=False, reason="no current runsc is installed", remedy=REMEDY)
        platform = working_platform(program)
        if platform is None:
            return Availability(
                is_available=False,
                reason=f"{program} cannot start a sandbox on this host",
                remedy=f"see what it says: {program} --platform=systrap --network=none do true",
            )
        return Availability(is_available=True, detail=f"{program}, platform {platform}")

    # -- life

    def start(self, branch_id: str) -> Instance:
        with explained(self.name, "start"):
            rootfs = self._make_rootfs()
            shutil.copy2(launcher_path(), self._init)
            env = {**SESSION_ENV, **rootfs.env, **self._arguments.env}
            write_bundle(
                self._bundle,
                rootfs=rootfs.path,
                init=self._init,
                env=env,
                volumes=self._arguments.volumes,
            )
            instance = self._new_instance()
            with UndoStack(f"start {instance.id}") as undo:
                undo.on_failure("discard", lambda: self.discard(instance))
                self._runsc(instance).start(instance.id, self._bundle, self._create_cgroup(instance))
                self._wait_until_ready(instance)
                workdir = self._arguments.workdir or rootfs.workdir
                profile = find_profile(rootfs.path, None)
                self._agent(instance).open_shell(profile, cwd=workdir, env=env, user=rootfs.shell_user())
            return instance

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        path = self.home / "images" / snapshot_id
        with explained(self.name, "snapshot"), UndoStack(f"snapshot {snapshot_id}") as undo:
            undo.on_failure("remove image", lambda: shutil.rmtree(path, ignore_errors=True))
            path.mkdir(parents=True, mode=0o700)
            self._require_no_exec(instance)
            self._runsc(instance).checkpoint(instance.id, path)
        size = sum(entry.stat().st_size for entry in os.scandir(path))
        return Image(id=snapshot_id, handle={"path": os.fspath(path)}, sizes={"image": size})

    def spawn(self, image: Image, branch_id: str) -> Instance:
        instance = self._new_instance()
        with explained(self.name, "restore"), UndoStack(f"restore {image.id}") as undo:
            undo.on_failure("discard", lambda: self.discard(instance))
            self._require_rootfs()
            self._runsc(instance).restore(
                instance.id, self._bundle, Path(str(image.handle["path"])), self._create_cgroup(instance)
            )
            self._wait_until_ready(instance)
        return instance

    def discard(self, instance: Instance) -> None:
        # `runsc delete` would wait until the sandbox is reaped by process 1, which may take seconds.
        with explained(self.name, "discard"):
            self._cgroup(instance).remove()
            shutil.rmtree(self._runtime_root(instance), ignore_errors=True)

    def delete(self, image: Image) -> None:
        shutil.rmtree(str(image.handle["path"]), ignore_errors=True)

    def close(self) -> None:
        self._remove_sandboxes()
        if self._source is None:
            with explained(self.name, "cleanup"):
                self._build.remove(with_image=not self._names_image)

    def _remove_sandboxes(self) -> None:
        with explained(self.name, "cleanup"):
            for path in find_cgroup2().glob(f"{self.tag}.*"):
                Cgroup(path).remove()
            shutil.rmtree(RUNTIME_ROOTS / self.tag, ignore_errors=True)

    def is_alive(self, instance: Instance) -> bool:
        return self._cgroup(instance).is_populated()

    def process_id(self, instance: Instance) -> int | None:
        """The sandbox: its memory is that of all processes inside."""
        cgroup = self._cgroup(instance)
        members = cgroup.members() if cgroup.is_populated() else []
        return next((pid for pid in members if is_sandbox(pid)), None)

    # -- work

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        return self._agent(instance).run(command, timeout_s)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        with explained(self.name, "copy_in"):
            copy_in(self._executor(instance), source, path)

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        with explained(self.name, "copy_out"):
            copy_out(self._executor(instance), path, target)

    # -- internal

    @property
    def _bundle(self) -> Path:
        return self.home / "bundle"

    @property
    def _init(self) -> Path:
        """A copy: an upgrade must not change the program under a sandbox that runs it."""
        return self.home / "init"

    def _make_rootfs(self) -> Rootfs:
        if self._source is not None:
            return unpacked(self._source, self.home / "rootfs")
        self._build.build(self._dockerfile_dir)
        return self._build.mount()

    def _require_rootfs(self) -> None:
        """After a reboot a root file system that buildah made has to be mounted again."""
        if self._source is None:
            self._build.mount()

    def _new_instance(self) -> Instance:
        return Instance(id=f"{self.tag}-{secrets.token_hex(3)}")

    def _runtime_root(self, instance: Instance) -> Path:
        return RUNTIME_ROOTS / self.tag / instance.id

    def _cgroup(self, instance: Instance) -> Cgroup:
        return Cgroup(find_cgroup2() / f"{self.tag}.{instance.id}")

    def _create_cgroup(self, instance: Instance) -> Path:
        """Make a new sandbox's directory and cgroup: all its processes start in the cgroup, and are ended with it."""
        self._runtime_root(instance).mkdir(parents=True, mode=0o700)
        cgroup = self._cgroup(instance)
        cgroup.create()
        return cgroup.path

    def _runsc(self, instance: Instance) -> Runsc:
        program = self._program()
        flags = (f"--platform={working_platform(program)}", "--network=none", "--ignore-cgroups")
        return Runsc(program=program, root=self._runtime_root(instance), flags=(*flags, OVERLAY_IN_MEMORY))

    def _program(self) -> Path:
        program = find_runsc()
        if program is None:
            raise BackendFailed(self.name, "call of runsc", "it is no longer installed", hint=REMEDY)
        return program

    def _agent(self, instance: Instance) -> Agent:
        return Agent(self.name, instance.id, lambda: self._runsc(instance).connect(instance.id))

    def _wait_until_ready(self, instance: Instance) -> None:
        """runsc returns when the first process was started, not when it listens."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with self._runsc(instance).connect(instance.id) as client:
                    client.ping()
                return
            except WaypointError:
                if time.monotonic() > deadline or not self.is_alive(instance):
                    raise

    def _require_no_exec(self, instance: Instance) -> None:
        """An image that is taken while an exec is open cannot be restored, though runsc reports success."""
        deadline = time.monotonic() + EXEC_END_TIMEOUT_S
        while pids := self._runsc(instance).open_execs(instance.id):
            if time.monotonic() > deadline:
                raise BackendFailed(
                    self.name,
                    "snapshot",
                    f"a program that was started by `runsc exec` still runs in {instance.id} (process {pids[0]} inside)",
                    hint="end it: an image of it could not be restored",
                )

    def _executor(self, instance: Instance) -> Execute:
        runsc = self._runsc(instance)

        def execute(argv: tuple[str, ...], stdin: IO[bytes] | None, stdout: IO[bytes]) -> tuple[int, str]:
            ended = runsc.exec(instance.id, argv, timeout_s=COPY_TIMEOUT_S, stdin=stdin, stdout=stdout)
            return ended.status, ended.stderr.strip()

        return execute


class GvisorAttachBackend(GvisorBackend):
    """A container that someone else runs with runsc, found by its name below ``runtime_root``.

    It has no shell of ours: each command is a new process, and no shell is part of a snapshot. A restore makes a
    container of our own from the image; the one attached to is never touched and is left to whoever made it.

    ``base_image`` is accepted because it was published: an image of runsc is a directory, and has no name.
    ``extra_args`` may say what the container was started with; a restored one has the same volumes, never others.
    """

    path_options = ("runtime_root",)

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        container_name: str,
        base_image: str | None = None,
        extra_args: str | Sequence[str] = (),
        runtime_root: str | Path = DEFAULT_RUNTIME_ROOT,
    ) -> None:
        Backend.__init__(self, home, tag)
        self._arguments = parse_run_arguments(extra_args)
        self._container = container_name
        self._foreign_root = Path(runtime_root).absolute()
        if self._record.exists():
            self._use_flags(json.loads(self._record.read_text()))

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> str | None:
        return f"{options.get('runtime_root', DEFAULT_RUNTIME_ROOT)}:{options['container_name']}"

    def is_still(self, instance: Instance) -> bool:
        """Another container may have the name by now: it has another sandbox then."""
        try:
            sandbox = find_sandbox(self._foreign_root, self._container)
        except HostError:
            return False
        return self._attached.exists() and self._attached.read_text() == sandbox.life

    def attach(self) -> Instance:
        with explained(self.name, "attach"):
            sandbox = find_sandbox(self._foreign_root, self._container)
            self._attached.write_text(sandbox.life)
            self._require_started_with(sandbox.spec)
            self._bundle.mkdir(exist_ok=True)
            (self._bundle / "config.json").write_text(json.dumps(sandbox.spec))
            self._record.write_text(json.dumps(sandbox.flags))
            self._use_flags(sandbox.flags)
        return Instance(id=self._container, handle={"is_foreign": 1})

    def discard(self, instance: Instance) -> None:
        if not _is_foreign(instance):
            super().discard(instance)

    def close(self) -> None:
        self._remove_sandboxes()

    def is_alive(self, instance: Instance) -> bool:
        return self.process_id(instance) is not None

    def process_id(self, instance: Instance) -> int | None:
        if not _is_foreign(instance):
            return super().process_id(instance)
        try:
            return find_sandbox(self._foreign_root, self._container).pid
        except HostError:
            return None

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        with explained(self.name, "exec"):
            self._require_alive(instance)
            return self._runsc(instance).run(instance.id, argv, timeout_s)

    # -- internal

    def _require_started_with(self, spec: Mapping[str, Any]) -> None:
        has = {(mount.get("source"), mount["destination"]) for mount in spec.get("mounts") or ()}
        for volume in self._arguments.volumes:
            if (os.fspath(volume.source), volume.target) not in has:
                raise WrongUse(
                    f"container {self._container!r} has no volume {volume.source}:{volume.target}",
                    hint="a restored container has the volumes that this one has; leave extra_args out",
                )
        if self._arguments.env or self._arguments.workdir:
            raise WrongUse(
                "a running container cannot be given other variables or another directory",
                hint="use export and cd in each command",
            )

    @property
    def _record(self) -> Path:
        return self.home / "attached.json"

    @property
    def _attached(self) -> Path:
        return self.home / "attached"

    def _use_flags(self, flags: Sequence[str]) -> None:
        self._flags = tuple(flags)
        self.capabilities = dataclasses.replace(
            EVERYTHING, files=keeps_files(self._flags), shell=False, terminal=False
        )

    def _require_rootfs(self) -> None:
        """Do nothing: the root file system is the foreign container's own."""

    def _require_alive(self, instance: Instance) -> None:
        if not self.is_alive(instance):
            raise BackendFailed(self.name, "exec", f"container {instance.id} does not run")

    def _wait_until_ready(self, instance: Instance) -> None:
        """Do not wait: a restored container runs at once."""
        self._require_alive(instance)

    def _runsc(self, instance: Instance) -> Runsc:
        root = self._foreign_root if _is_foreign(instance) else self._runtime_root(instance)
        return Runsc(program=self._program(), root=root, flags=self._flags)


def _is_foreign(instance: Instance) -> bool:
    return bool(instance.handle.get("is_foreign"))
