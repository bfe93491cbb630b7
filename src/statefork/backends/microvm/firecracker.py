"""Firecracker: the same machines under Amazon's monitor, which needs a working KVM.

Firecracker writes a machine's memory to a file when it is saved, and maps that file privately when it is loaded, so that
any number of clones share it. Paths of disk and sockets are part of what is saved; each process therefore runs in the
directory of its machine, and knows its files by relative names.
"""

import os
import shutil
import time
from pathlib import Path

from statefork.backend import Availability
from statefork.backends.microvm.driver import DISK, Driver, Kernel, Shape
from statefork.backends.microvm.firecracker_api import FirecrackerApi
from statefork.backends.microvm.kvm import device_problem, module_problem
from statefork.backends.microvm.line import Line
from statefork.backends.microvm.process import VmProcess, last_words, start_in_background
from statefork.backends.microvm.sockets import connect_in
from statefork.backends.microvm.storage import clone_file
from statefork.errors import BackendFailed
from waypoint.errors import HostError
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool
from waypoint.kernel.undo import UndoStack

__all__ = ["FirecrackerDriver", "launch", "load_snapshot", "resume", "save_snapshot"]

PROGRAM = "firecracker"
API_SOCKET, VSOCK_SOCKET = "api", "vsock"
MEMORY, STATE = "memory", "state"
GUEST_CID, GUEST_PORT = 3, 1024
START_TIMEOUT_S = 30.0
LAST_WORDS_S = 1.0
ASK_AGAIN_S = 0.01


class FirecrackerDriver(Driver):
    name = "firecracker"
    modules = ("virtio_mmio", "virtio_blk", "vmw_vsock_virtio_transport")

    def __init__(self, program: str | None = None) -> None:
        self._program = program or PROGRAM

    @classmethod
    def probe(cls, program: str = PROGRAM) -> Availability:
        if shutil.which(program, path=CLEAN_ENV["PATH"]) is None:
            return Availability(
                is_available=False,
                reason=f"no {program} program on the PATH" if program == PROGRAM else f"no program {program}",
                remedy="put the program from Firecracker's releases there, 1.8 or newer",
            )
        problem = device_problem() or module_problem()
        if problem is not None:
            return Availability(
                is_available=False, reason=problem, remedy="a host with a working KVM is needed"
            )
        return Availability(is_available=True, detail="Firecracker")

    def identity(self) -> str:
        try:
            return run_tool([self._program, "--version"], timeout_s=START_TIMEOUT_S).stdout.splitlines()[0]
        except HostError as error:
            raise BackendFailed("firecracker", "ask for its version", str(error)) from error

    def boot(self, directory: Path, kernel: Kernel, initramfs: Path, shape: Shape) -> VmProcess:
        words = f"console=ttyS0 quiet panic=-1 reboot=k -- machine --vsock {GUEST_PORT}"
        process, api = launch(self._program, directory, API_SOCKET, directory)
        try:
            api.put("/machine-config", {"vcpu_count": shape.vcpus, "mem_size_mib": shape.memory_mb})
            api.put(
                "/boot-source",
                {
                    "kernel_image_path": os.fspath(kernel.vmlinux),
                    "initrd_path": os.fspath(initramfs),
                    "boot_args": words,
                },
            )
            api.put(
                "/drives/disk",
                {"drive_id": "disk", "path_on_host": DISK, "is_root_device": False, "is_read_only": False},
            )
            api.put("/vsock", {"guest_cid": GUEST_CID, "uds_path": VSOCK_SOCKET})
            api.put("/actions", {"action_type": "InstanceStart"})
        except BaseException:
            process.end()
            raise
        return process

    def save(self, directory: Path, target: Path) -> None:
        save_snapshot(FirecrackerApi(directory, API_SOCKET), {DISK: directory / DISK}, target)

    def resume(self, directory: Path) -> None:
        resume(FirecrackerApi(directory, API_SOCKET))

    def load(self, image: Path, directory: Path, shape: Shape) -> VmProcess:
        clone_file(image / DISK, directory / DISK)
        process, api = launch(self._program, directory, API_SOCKET, directory)
        try:
            load_snapshot(api, image)
        except BaseException:
            process.end()
            raise
        return process

    def connect(self, directory: Path, timeout_s: float) -> Line:
        """Firecracker's own handshake: the port that is wanted, one line each way."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = Line()
            try:
                connect_in(directory, VSOCK_SOCKET, line, timeout_s)
                line.send(f"CONNECT {GUEST_PORT}\n".encode())
                if _read_line(line).startswith(b"OK "):
                    return line
                raise ConnectionRefusedError("the machine does not take connections")
            except (ConnectionRefusedError, ConnectionResetError):
                line.close()
                # A machine that boots refuses until its relay listens; no event says when.
                if time.monotonic() > deadline:
                    raise
                time.sleep(ASK_AGAIN_S)
            except BaseException:
                line.close()
                raise


def launch(program: str, directory: Path, api_socket: str, notes: Path) -> tuple[VmProcess, FirecrackerApi]:
    """Start Firecracker in ``directory``, not as our child; return when its API answers. Raises BackendFailed.

    Its pid and its errors are written to files in ``notes``.
    """
    command = ["env", f"--chdir={directory}", program, "--api-sock", api_socket]
    socket_file = directory / api_socket
    api = FirecrackerApi(socket_file.parent, socket_file.name)
    try:
        start_in_background(command, notes)
        return _await_answer(api, notes), api
    except BaseException:
        if (process := VmProcess.begun(notes)) is not None:
            process.end()
        raise


def _await_answer(api: FirecrackerApi, notes: Path) -> VmProcess:
    """Wait until the API answers; return the process that does. No event says when it has made its socket."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return VmProcess.of(api.server_pid())
        except (FileNotFoundError, ConnectionRefusedError, ProcessLookupError) as error:
            said = last_words(notes)
            if said:  # a warning, or its last words: then it will not make the socket any more
                deadline = min(deadline, time.monotonic() + LAST_WORDS_S)
            if time.monotonic() > deadline:
                reason = said or "its API does not answer"
                raise BackendFailed("firecracker", "start of Firecracker", reason) from error
        time.sleep(ASK_AGAIN_S)


def save_snapshot(api: FirecrackerApi, disks: dict[str, Path], target: Path) -> None:
    """Save memory and disks of the same moment; the machine is paused meanwhile, and resumed also on failure."""
    with UndoStack("snapshot of a microVM") as undo:
        undo.always("resume", lambda: resume(api))
        api.patch("/vm", {"state": "Paused"})
        api.put(
            "/snapshot/create",
            {
                "snapshot_type": "Full",
                "snapshot_path": os.fspath(target / STATE),
                "mem_file_path": os.fspath(target / MEMORY),
            },
        )
        for name, disk in disks.items():
            clone_file(disk, target / name)


def resume(api: FirecrackerApi) -> None:
    """Resume a machine that was paused; one that runs is not changed."""
    api.patch("/vm", {"state": "Resumed"})


def load_snapshot(api: FirecrackerApi, image: Path) -> None:
    """Load a saved machine into a new Firecracker and let it run."""
    api.put(
        "/snapshot/load",
        {
            "snapshot_path": os.fspath(image / STATE),
            "mem_backend": {"backend_type": "File", "backend_path": os.fspath(image / MEMORY)},
            "resume_vm": True,
        },
    )


def _read_line(line: Line) -> bytes:
    """Read up to the end of the line and not a byte further: what follows comes from the machine."""
    said = b""
    while not said.endswith(b"\n"):
        byte = line.receive_raw(1)
        if not byte:
            raise ConnectionRefusedError("the machine does not take connections")
        said += byte
    return said
