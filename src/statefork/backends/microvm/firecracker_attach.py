"""A Firecracker machine that someone else has started, reached by ssh as its owner reaches it.

It is saved through its API and restored into a new Firecracker process with the same API socket; its disks are restored
to the same paths. Its network address and its files are its own, so it cannot live twice: there are no branches, and a
restore that fails leaves it ended, to be restored again.
"""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from statefork.arguments import as_number
from statefork.backend import (
    Availability,
    Backend,
    Capabilities,
    Command,
    CommandResult,
    Image,
    Instance,
)
from statefork.backends.microvm.driver import being_saved, resume_interrupted
from statefork.backends.microvm.firecracker import (
    PROGRAM,
    FirecrackerDriver,
    launch,
    load_snapshot,
    resume,
    save_snapshot,
)
from statefork.backends.microvm.firecracker_api import FirecrackerApi
from statefork.backends.microvm.process import VmProcess
from statefork.backends.microvm.storage import clone_file, remove_directory
from statefork.backends.processes.client_commands import (
    KILL_TIMEOUT_S,
    kill_words,
    reporting_pid,
    run_through_client,
)
from statefork.backends.processes.failures import explained
from statefork.backends.processes.private_directory import make_private_directory
from statefork.errors import BackendFailed, WrongUse
from waypoint.kernel.processes.programs import Finished, Popen, run_tool, spawn

__all__ = ["FirecrackerAttachBackend"]

COPY_TIMEOUT_S = 600.0
SSH_FAILED = 255
ANY_STATUS = range(256)
SSH_READY_TIMEOUT_S = 30.0
ASK_AGAIN_S = 0.2


class FirecrackerAttachBackend(Backend):
    """``pid`` is Firecracker's, ``key`` a private ssh key of the machine's root."""

    name = "firecracker"
    path_options = ("key", "checkpoint_dir", "vm_dir", "api_socket")
    program_options = ("fire_binary", "ssh", "scp")
    capabilities = Capabilities(files=True, memory=True, processes=True, sockets=True)

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        pid: int,
        key: str | Path,
        microvm_ip: str = "172.16.0.2",
        tap_dev: str = "tap0",
        checkpoint_dir: str | Path = "/tmp/fire_ckpts",
        vm_dir: str | Path = "/tmp/fire_vm",
        fire_binary: str | None = None,
        api_socket: str | Path = "/tmp/firecracker.socket",
        ssh: str = "ssh",
        scp: str = "scp",
    ) -> None:
        super().__init__(home, tag)
        self._pid = as_number("pid", pid)
        self._tap_dev = tap_dev
        self._checkpoint_dir = Path(checkpoint_dir).absolute()
        self._images = self._checkpoint_dir / tag
        self._vm_dir = Path(vm_dir).absolute()
        self._program = fire_binary or PROGRAM
        self._api_socket = Path(api_socket).absolute()
        self._api = FirecrackerApi(self._api_socket.parent, self._api_socket.name)
        self._host = f"root@{microvm_ip}"
        options = (
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        )
        self._ssh_options = ["-i", os.fspath(key), *(word for option in options for word in ("-o", option))]
        self._ssh, self._scp = ssh, scp

    @classmethod
    def probe(cls) -> Availability:
        return FirecrackerDriver.probe()

    @classmethod
    def probe_with(cls, options: Mapping[str, object]) -> Availability:
        return FirecrackerDriver.probe(str(options.get("fire_binary") or PROGRAM))

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> str | None:
        return str(options.get("api_socket", "/tmp/firecracker.socket"))

    def start(self, branch_id: str) -> Instance:
        raise WrongUse(
            "firecracker_attach takes over a machine that runs", hint="firecracker_build makes one"
        )

    def attach(self) -> Instance:
        try:
            process = VmProcess.of(self._pid)
            served_by = self._api.server_pid()
        except OSError as error:
            raise BackendFailed(
                self.name, "attach", f"no Firecracker answers at {self._api_socket}"
            ) from error
        if served_by != self._pid:
            raise WrongUse(f"{self._api_socket} belongs to process {served_by}, not {self._pid}")
        with explained(self.name, "attach"):
            self._make_own_directory()
        return Instance(id=str(self._pid), handle=process.to_handle())

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        target = self._images / snapshot_id
        with explained(self.name, "snapshot"):
            self._make_own_directory()
            target.mkdir(mode=0o700)
            try:
                disks = self._disks(instance)
                with being_saved(self.home):
                    save_snapshot(self._api, {f"disk-{name}": path for name, path in disks.items()}, target)
            except BaseException:
                remove_directory(target)
                raise
        sizes = {entry.name: entry.stat().st_blocks * 512 for entry in os.scandir(target)}
        return Image(
            id=snapshot_id, handle={name: os.fspath(path) for name, path in disks.items()}, sizes=sizes
        )

    def spawn(self, image: Image, branch_id: str) -> Instance:
        with explained(self.name, "restore"):
            if not Path(f"/sys/class/net/{self._tap_dev}").exists():
                raise BackendFailed(
                    self.name, "restore", f"the machine's network device {self._tap_dev} no longer exists"
                )
            for name, path in image.handle.items():
                self._restore_disk(self._images / image.id / f"disk-{name}", Path(str(path)))
            self._api_socket.unlink(missing_ok=True)
            process, api = launch(self._program, self._vm_dir, os.fspath(self._api_socket), self.home)
            try:
                load_snapshot(api, self._images / image.id)
                self._wait_until_reachable()
            except BaseException:
                process.end()
                raise
            return Instance(id=str(process.pid), handle=process.to_handle())

    def replace(self, instance: Instance, image: Image, branch_id: str) -> Instance:
        """End the machine first: it cannot live twice."""
        if not (self._images / image.id).is_dir():
            raise BackendFailed(self.name, "restore", f"{self._images / image.id} no longer exists")
        VmProcess.from_handle(instance.handle).end()
        return self.spawn(image, branch_id)

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        self._require_alive(instance)
        with explained(self.name, "exec"):
            result = run_through_client(
                partial(self._start_ssh, reporting_pid(command)), self._end_command, timeout_s
            )
        if result.status == SSH_FAILED:
            raise BackendFailed(self.name, "exec", result.errors.strip() or "ssh gives no reason")
        return CommandResult(exit_code=result.status, output=result.output, errors=result.errors)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        self._require_alive(instance)
        self._copy("copy_in", os.fspath(source), f"{self._host}:{path}")

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        self._require_alive(instance)
        self._copy("copy_out", f"{self._host}:{path}", os.fspath(target))

    def discard(self, instance: Instance) -> None:
        """Do nothing: the machine belongs to someone else."""

    def delete(self, image: Image) -> None:
        remove_directory(self._images / image.id)

    def is_alive(self, instance: Instance) -> bool:
        return VmProcess.from_handle(instance.handle).is_alive()

    def process_id(self, instance: Instance) -> int | None:
        return VmProcess.from_handle(instance.handle).pid

    def close(self) -> None:
        remove_directory(self._images)

    # -- internal

    def _make_own_directory(self) -> None:
        make_private_directory(self._checkpoint_dir, self.tag, option="checkpoint_dir")

    def _require_alive(self, instance: Instance) -> None:
        if not self.is_alive(instance):
            raise BackendFailed(self.name, "exec", "the machine has ended", hint="restore a snapshot")
        resume_interrupted(self.home, lambda: resume(self._api))

    def _disks(self, instance: Instance) -> dict[str, Path]:
        """The files behind the machine's disks, by the names that Firecracker knows; read-only ones never change."""
        directory = Path(os.readlink(f"/proc/{VmProcess.from_handle(instance.handle).pid}/cwd"))
        drives = self._api.get("/vm/config")["drives"]
        return {
            drive["drive_id"]: directory / drive["path_on_host"]
            for drive in drives
            if not drive["is_read_only"]
        }

    def _restore_disk(self, saved: Path, disk: Path) -> None:
        draft = disk.with_name(f".{disk.name}.{self.tag}")
        draft.unlink(missing_ok=True)
        clone_file(saved, draft)
        draft.rename(disk)

    def _wait_until_reachable(self) -> None:
        """The network of a restored machine needs a moment; no event says when it works."""
        deadline = time.monotonic() + SSH_READY_TIMEOUT_S
        while (done := self._over_ssh("true", SSH_READY_TIMEOUT_S)).status == SSH_FAILED:
            if time.monotonic() > deadline:
                raise BackendFailed(self.name, "restore", done.stderr.strip() or "ssh does not reach it")
            time.sleep(ASK_AGAIN_S)

    def _start_ssh(self, words: Sequence[str], out: IO[bytes], err: IO[bytes]) -> "Popen[bytes]":
        # The login's shell leads a session of its own; so does the program that it becomes.
        text = f"exec {shlex.join(words)}"
        return spawn([self._ssh, *self._ssh_options, self._host, text], stdout=out, stderr=err)

    def _end_command(self, pid: int) -> None:
        with explained(self.name, "kill"):
            self._over_ssh(shlex.join(kill_words(pid)), KILL_TIMEOUT_S)

    def _over_ssh(self, text: str, timeout_s: float) -> Finished:
        return run_tool(
            [self._ssh, *self._ssh_options, self._host, text], timeout_s=timeout_s, accept=ANY_STATUS
        )

    def _copy(self, operation: str, source: str, target: str) -> None:
        with explained(self.name, operation):
            run_tool([self._scp, "-r", *self._ssh_options, source, target], timeout_s=COPY_TIMEOUT_S)
