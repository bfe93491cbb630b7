"""MicroVMs: every instance is a virtual machine with a kernel of its own, saved whole and cloned by reference.

Our init is the first process of the session inside, so the shell, its terminal and whatever runs there are part of the
state. A driver knows which virtual machine monitor runs the machines: QEMU's ``microvm``, or Firecracker.
"""

import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statefork.agent import Agent
from statefork.arguments import as_number
from statefork.backend import (
    EVERYTHING,
    Availability,
    Backend,
    Command,
    CommandResult,
    Handle,
    Image,
    Instance,
)
from statefork.backends.microvm.accelerator import try_kvm
from statefork.backends.microvm.base import Base
from statefork.backends.microvm.driver import Driver, Kernel, Shape, being_saved, resume_interrupted
from statefork.backends.microvm.firecracker import PROGRAM, FirecrackerDriver
from statefork.backends.microvm.kernel import fetch_kernel
from statefork.backends.microvm.process import VmProcess
from statefork.backends.microvm.program import run_program
from statefork.backends.microvm.qemu import QemuDriver
from statefork.backends.microvm.storage import Storage, remove_directory
from statefork.backends.microvm.template import Recipe, drop_half_made, locked_template
from statefork.backends.processes.exec_files import Execute, copy_in, copy_out
from statefork.backends.processes.failures import explained
from statefork.errors import BackendFailed, WrongUse
from waypoint.errors import Broken
from waypoint.kernel.storage.extents import added_bytes
from waypoint.kernel.undo import UndoStack
from waypoint.session.context import launcher_path
from waypoint.shell.client import ShellClient

__all__ = ["FirecrackerBackend", "MicrovmBackend"]

DRIVERS: Mapping[str, type[Driver]] = {"firecracker": FirecrackerDriver, "qemu": QemuDriver}
"""By preference."""

ANSWER_TIMEOUT_S = 60.0


class MicrovmBackend(Backend):
    """``base`` is a directory or a tar archive with a root file system; else ``dockerfile_dir`` is built by buildah.

    ``driver`` is ``qemu`` or ``firecracker``, by default the best that works here; ``accelerator`` (of QEMU) ``kvm`` or
    ``tcg``, by default whichever works. ``inject_dir`` is a directory of the host that is copied to ``/app``.
    """

    name = "microvm"
    capabilities = EVERYTHING

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        base: str | Path | None = None,
        dockerfile_dir: str | Path | None = None,
        inject_dir: str | Path | None = None,
        driver: str | None = None,
        accelerator: str | None = None,
        memory_mb: int = 512,
        vcpus: int = 1,
        disk_mb: int = 4096,
    ) -> None:
        super().__init__(home, tag)
        if driver not in (None, *DRIVERS):
            raise WrongUse(f"no driver {driver!r}", hint=f"known are {', '.join(DRIVERS)}")
        if accelerator not in (None, "kvm", "tcg"):
            raise WrongUse(f"no accelerator {accelerator!r}", hint="known are kvm and tcg")
        self._base = base, dockerfile_dir
        self._inject_dir = None if inject_dir is None else Path(inject_dir).absolute()
        self._driver_name = driver
        self._accelerator = accelerator
        self._shape = Shape(memory_mb=as_number("memory_mb", memory_mb), vcpus=as_number("vcpus", vcpus))
        self._disk_mb = as_number("disk_mb", disk_mb)
        self._directory = home.parent / "microvm"
        self._storage = Storage(self._directory)

    @classmethod
    def probe(cls) -> Availability:
        problem = _host_problem()
        if problem is not None:
            return problem
        found = {name: driver.probe() for name, driver in DRIVERS.items()}
        for name, availability in found.items():
            if availability.is_available:
                others = "; ".join(
                    f"not {other}: {answer.reason}" for other, answer in found.items() if other != name
                )
                return Availability(is_available=True, detail=f"{availability.detail} ({others})")
        return Availability(
            is_available=False,
            reason="; ".join(answer.reason for answer in found.values()),
            remedy=found["qemu"].remedy,
        )

    # -- life

    def start(self, branch_id: str) -> Instance:
        base = Base.chosen(*self._base)
        with explained(self.name, "start"), self._storage.opened() as root:
            driver = self._choose_driver()
            recipe = Recipe(
                driver=driver, kernel=self._kernel(), base=base, shape=self._shape, disk_mb=self._disk_mb
            )
            with locked_template(
                root, recipe, lambda directory, left: _connect(driver, directory, left)
            ) as template:
                instance = self._load(root, driver, template)
        if self._inject_dir is not None:
            with UndoStack("start of a microVM") as undo:
                undo.on_failure("discard", lambda: self.discard(instance))
                self.copy_in(instance, self._inject_dir, "/app")
        return instance

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        with explained(self.name, "snapshot"), self._storage.opened() as root:
            self._require_alive(instance)
            driver = self._driver(instance.handle)
            target = self._own(root) / "images" / snapshot_id
            target.mkdir(parents=True, mode=0o700)
            directory = self._machine_directory(root, instance)
            try:
                with being_saved(directory):
                    driver.save(directory, target)
                sizes = _added(target, _origin(directory))
                _set_origin(directory, target)
            except BaseException:
                remove_directory(target)
                raise
        return Image(id=snapshot_id, handle=driver.to_handle(), sizes=sizes)

    def spawn(self, image: Image, branch_id: str) -> Instance:
        with explained(self.name, "restore"), self._storage.opened() as root:
            return self._load(root, self._driver(image.handle), self._own(root) / "images" / image.id)

    def discard(self, instance: Instance) -> None:
        with explained(self.name, "discard"), self._storage.opened() as root:
            VmProcess.from_handle(instance.handle).end()
            remove_directory(self._machine_directory(root, instance))

    def delete(self, image: Image) -> None:
        with explained(self.name, "delete"), self._storage.opened() as root:
            remove_directory(self._own(root) / "images" / image.id)

    def close(self) -> None:
        with explained(self.name, "cleanup"):
            if self._storage.directory.is_dir():
                with self._storage.opened() as root:
                    for directory in self._own(root).glob("machines/*"):  # of a call that was interrupted
                        if (process := VmProcess.noted_in(directory)) is not None:
                            process.end()
                    remove_directory(self._own(root))
                    drop_half_made(root)
                self._storage.release()

    # -- work

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        self._require_alive(instance)
        return Agent(self.name, instance.id, lambda: self.connect(instance)).run(command, timeout_s)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        with explained(self.name, "copy_in"):
            copy_in(self._executor(instance), source, path)

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        with explained(self.name, "copy_out"):
            copy_out(self._executor(instance), path, target)

    def is_alive(self, instance: Instance) -> bool:
        return VmProcess.from_handle(instance.handle).is_alive()

    def process_id(self, instance: Instance) -> int | None:
        return VmProcess.from_handle(instance.handle).pid

    def connect(self, instance: Instance) -> ShellClient:
        """A connection to the init inside. Raises Broken."""
        directory, driver = self.machine_directory(instance), self._driver(instance.handle)
        resume_interrupted(directory, lambda: driver.resume(directory))
        return _connect(driver, directory, ANSWER_TIMEOUT_S)

    def machine_directory(self, instance: Instance) -> Path:
        """Where the files and sockets of a machine are."""
        with self._storage.opened() as root:
            return self._machine_directory(root, instance)

    # -- internal

    def _choose_driver(self) -> Driver:
        """What the caller wants, else the best that works here."""
        wanted = self._driver_name
        if wanted is None:
            wanted = next((name for name, driver in DRIVERS.items() if driver.probe().is_available), "qemu")
        DRIVERS[wanted].require()
        if wanted == "firecracker":
            return FirecrackerDriver()
        if self._accelerator is not None:
            return QemuDriver(is_accelerated=self._accelerator == "kvm")
        return QemuDriver(is_accelerated=try_kvm(self._directory, self._kernel()).works)

    def _driver(self, handle: Handle) -> Driver:
        """The driver that made a machine."""
        if handle["driver"] == "firecracker":
            return FirecrackerDriver()
        return QemuDriver(is_accelerated=handle["accelerator"] == "kvm")

    def _kernel(self) -> Kernel:
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        return fetch_kernel(self._directory / "kernel", proxies=proxies)

    def _load(self, root: Path, driver: Driver, image: Path) -> Instance:
        if not image.is_dir():
            raise BackendFailed(self.name, "restore", f"{image} no longer exists")
        name = secrets.token_hex(4)
        directory = self._own(root) / "machines" / name
        directory.mkdir(parents=True, mode=0o700)
        process = None
        try:
            process = driver.load(image, directory, self._shape)
            process.note_in(directory)
            _set_origin(directory, image)
            # Before anyone uses it, set its clock and seed its random numbers.
            _connect(driver, directory, ANSWER_TIMEOUT_S, renew=True).close()
        except BaseException:
            if process is not None:
                process.end()
            remove_directory(directory)
            raise
        return Instance(id=name, handle={**driver.to_handle(), **process.to_handle()})

    def _require_alive(self, instance: Instance) -> None:
        if not self.is_alive(instance):
            raise BackendFailed(
                self.name, "find", f"machine {instance.id} has ended", hint="restore a snapshot"
            )

    def _executor(self, instance: Instance) -> Execute:
        self._require_alive(instance)
        return lambda command, source, output: run_program(
            lambda: self.connect(instance), command, source, output
        )

    def _own(self, root: Path) -> Path:
        return root / self.tag

    def _machine_directory(self, root: Path, instance: Instance) -> Path:
        return self._own(root) / "machines" / instance.id


def _host_problem() -> Availability | None:
    """Why no driver at all can work here; None if each has to be asked."""
    if platform.machine() != "x86_64":
        return Availability(is_available=False, reason=f"no guest kernel for {platform.machine()} is known")
    if os.geteuid() != 0:
        return Availability(is_available=False, reason="it needs root", remedy="run with sudo")
    if not launcher_path().exists():
        return Availability(is_available=False, reason="our init was not built", remedy="make install")
    return None


def _added(image: Path, origin: Path) -> dict[str, int]:
    """What the files of a saved machine take, beyond what they share with what it came from."""
    return {entry.name: added_bytes(image / entry.name, origin / entry.name) for entry in os.scandir(image)}


def _origin(directory: Path) -> Path:
    """The image that a running machine was loaded from, or saved as last."""
    return Path(os.readlink(directory / "origin"))


def _set_origin(directory: Path, image: Path) -> None:
    (directory / "origin").unlink(missing_ok=True)
    (directory / "origin").symlink_to(image)


def _connect(driver: Driver, directory: Path, timeout_s: float, *, renew: bool = False) -> ShellClient:
    """Reach the init of the machine in ``directory``. Raises Broken."""
    try:
        line = driver.connect(directory, timeout_s)
        try:
            line.open(timeout_s, renew=renew)
        except BaseException:
            line.close()
            raise
    except TimeoutError as error:
        raise Broken("the machine does not answer") from error
    except OSError as error:
        raise Broken("the machine has ended") from error
    return ShellClient(line)


class FirecrackerBackend(MicrovmBackend):
    """The same on Firecracker alone, with the options that were published for it.

    ``firecracker_dir`` (or ``fire_parent_dir``) is where the machines are kept, unless it is ``/tmp``, which belongs to
    everyone: then they are kept in the state directory. ``inject_dir`` is ignored if there is no such directory.
    ``fire_binary`` is Firecracker's program.
    """

    name = "firecracker"
    path_options = ("firecracker_dir", "fire_parent_dir")
    program_options = ("fire_binary",)

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        firecracker_dir: str | Path = "/tmp",
        fire_parent_dir: str | Path | None = None,
        inject_dir: str | Path = "app",
        fire_binary: str | None = None,
        **options: Any,
    ) -> None:
        injected = inject_dir if Path(inject_dir).is_dir() else None
        super().__init__(home, tag, inject_dir=injected, driver="firecracker", **options)
        chosen = Path(fire_parent_dir or firecracker_dir)
        if chosen != Path("/tmp"):
            self._storage = Storage(chosen.absolute() / "statefork-microvm")
        self._fire_binary = fire_binary

    @classmethod
    def probe(cls) -> Availability:
        return _host_problem() or FirecrackerDriver.probe()

    @classmethod
    def probe_with(cls, options: Mapping[str, object]) -> Availability:
        return _host_problem() or FirecrackerDriver.probe(str(options.get("fire_binary") or PROGRAM))

    def _choose_driver(self) -> Driver:
        return FirecrackerDriver(self._fire_binary)

    def _driver(self, handle: Handle) -> Driver:
        return FirecrackerDriver(self._fire_binary)
