"""QEMU's machine type ``microvm``: a kernel, a disk, a serial port, and nothing else that would have to be emulated.

The memory is a file of the machine's directory, mapped shared. A snapshot stops the machine for as long as it takes to
write the state of its devices (a small file: the capability ``x-ignore-shared`` leaves the memory out) and to copy
memory and disk by reference. A clone maps its own copy.
"""

import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from statefork.backend import Availability
from statefork.backends.microvm.driver import DISK, Driver, Kernel, Shape
from statefork.backends.microvm.kvm import device_problem
from statefork.backends.microvm.line import Line
from statefork.backends.microvm.process import VmProcess, last_words, start_in_background
from statefork.backends.microvm.qmp import Qmp
from statefork.backends.microvm.sockets import connect_in, listening_in
from statefork.backends.microvm.storage import clone_file
from statefork.errors import BackendFailed
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool
from waypoint.kernel.undo import UndoStack

__all__ = ["QemuDriver", "qemu_version", "start_qemu"]

PROGRAM = "qemu-system-x86_64"
PACKAGE = "qemu-system-x86"
MEMORY, STATE, PORT = "memory", "state", "port"
START_TIMEOUT_S = 60.0
MIGRATION_TIMEOUT_S = 120.0
ASK_AGAIN_S = 0.005
PORT_DEVICE = "/dev/vport*p1"

# Without a frequency the guest measures it against a timer that QEMU does not emulate well enough, and hangs.
TCG_WORDS = "tsc_early_khz=2400000 no_timer_check"


class QemuDriver(Driver):
    name = "qemu"
    modules = ("virtio_mmio", "virtio_blk", "virtio_console")

    def __init__(self, *, is_accelerated: bool) -> None:
        self._is_accelerated = is_accelerated

    @classmethod
    def probe(cls) -> Availability:
        if shutil.which(PROGRAM, path=CLEAN_ENV["PATH"]) is None:
            return Availability(
                is_available=False,
                reason=f"{PROGRAM} is not installed",
                remedy=f"apt-get install {PACKAGE}",
            )
        problem = device_problem()
        speed = "KVM if it boots a stock kernel" if problem is None else f"emulation, because {problem}"
        return Availability(is_available=True, detail=f"QEMU microvm, by {speed}")

    def to_handle(self) -> dict[str, str | int]:
        return {"driver": self.name, "accelerator": "kvm" if self._is_accelerated else "tcg"}

    def identity(self) -> str:
        return f"{qemu_version()} {self.to_handle()}"

    def boot(self, directory: Path, kernel: Kernel, initramfs: Path, shape: Shape) -> VmProcess:
        with open(directory / MEMORY, "xb") as memory:
            memory.truncate(shape.memory_mb << 20)
        words = f"console=ttyS0 quiet panic=-1 reboot=t {TCG_WORDS if not self._is_accelerated else ''}"
        boot = ["-kernel", os.fspath(kernel.vmlinux), "-initrd", os.fspath(initramfs)]
        boot += ["-append", f"{words} -- machine --port {PORT_DEVICE}"]
        boot += ["-serial", f"file:{directory / 'console'}"]
        return self._start(directory, shape, boot)

    def save(self, directory: Path, target: Path) -> None:
        # A copy by reference waits until all is on the disk: write most of it while the machine still runs.
        _write_out(directory / MEMORY)
        with Qmp(directory) as qmp, UndoStack("snapshot of a microVM") as undo:
            undo.always("continue", lambda: _continue(qmp))
            qmp.execute("stop")
            with open(target / STATE, "xb") as state:
                _migrate(qmp, "migrate", state.fileno())
            for name in (MEMORY, DISK):
                clone_file(directory / name, target / name)

    def resume(self, directory: Path) -> None:
        with Qmp(directory) as qmp:
            _continue(qmp)

    def load(self, image: Path, directory: Path, shape: Shape) -> VmProcess:
        for name in (MEMORY, DISK):
            clone_file(image / name, directory / name)
        process = self._start(directory, shape, ["-S", "-incoming", "defer", "-serial", "null"])
        try:
            with Qmp(directory) as qmp, open(image / STATE, "rb") as state:
                _migrate(qmp, "migrate-incoming", state.fileno())
                qmp.execute("cont")
        except BaseException:
            process.end()
            raise
        return process

    def connect(self, directory: Path, timeout_s: float) -> Line:
        line = Line()
        try:
            connect_in(directory, PORT, line, timeout_s)
        except BaseException:
            line.close()
            raise
        return line

    def _start(self, directory: Path, shape: Shape, extra: Sequence[str]) -> VmProcess:
        with listening_in(directory, PORT) as port:
            devices = [
                *("-smp", str(shape.vcpus), "-m", str(shape.memory_mb)),
                *("-object", _memory(directory, shape)),
                *(
                    "-drive",
                    f"if=none,id=disk,format=raw,discard=unmap,cache=unsafe,file={_value(directory / DISK)}",
                ),
                *("-device", "virtio-blk-device,drive=disk"),
                *("-device", "virtio-serial-device"),
                *("-chardev", f"socket,id=port,fd={port},server=on,wait=off"),
                *("-device", "virtserialport,chardev=port,nr=1"),
            ]
            machine = "microvm,pit=on,pic=on,rtc=on,memory-backend=memory"
            command = ["-M", machine, *_accelerated(self._is_accelerated), *devices, *extra]
            return start_qemu(directory, command, pass_fds=(port,))


def qemu_version() -> str:
    """The first line that ``--version`` prints."""
    return run_tool([PROGRAM, "--version"], timeout_s=START_TIMEOUT_S).stdout.splitlines()[0]


def start_qemu(directory: Path, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> VmProcess:
    """Start QEMU in the background: no terminal, no child of ours; its monitor is ``qmp`` in ``directory``.

    It may not start programs or gain rights. Raises BackendFailed with what QEMU prints.
    """
    common = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    common += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    try:
        with listening_in(directory, "qmp") as monitor:
            common += ["-chardev", f"socket,id=qmp,fd={monitor},server=on,wait=off"]
            common += ["-mon", "chardev=qmp,mode=control"]
            start_in_background([PROGRAM, *common, *command], directory, pass_fds=(monitor, *pass_fds))
        with Qmp(directory):  # it greets when it is ready
            return _begun(directory)
    except BaseException as error:
        if (process := VmProcess.begun(directory)) is not None:
            process.end()
        if isinstance(error, BackendFailed):
            raise BackendFailed("microvm", "start of QEMU", last_words(directory) or error.reason) from error
        raise


def _begun(directory: Path) -> VmProcess:
    process = VmProcess.begun(directory)
    if process is None:
        raise BackendFailed("microvm", "start of QEMU", "it has ended")
    return process


def _accelerated(yes: bool) -> list[str]:
    if yes:
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", "max"]


def _memory(directory: Path, shape: Shape) -> str:
    path = _value(directory / MEMORY)
    return f"memory-backend-file,id=memory,size={shape.memory_mb}M,share=on,mem-path={path}"


def _write_out(path: Path) -> None:
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())


def _value(path: Path) -> str:
    """A comma ends a value for QEMU; two stand for one."""
    return os.fspath(path).replace(",", ",,")


def _continue(qmp: Qmp) -> None:
    """Let a machine run. QEMU reports a state as written a moment before it allows this; no event says when it does."""
    deadline = time.monotonic() + MIGRATION_TIMEOUT_S
    while qmp.execute("query-status")["status"] == "finish-migrate" and time.monotonic() < deadline:
        time.sleep(ASK_AGAIN_S)
    qmp.execute("cont")


def _migrate(qmp: Qmp, command: str, fd: int) -> None:
    """Write or read the state of the devices. The machine is stopped."""
    wanted = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
    qmp.execute("migrate-set-capabilities", {"capabilities": wanted})
    name = f"state-{threading.get_native_id()}"
    qmp.execute("getfd", {"fdname": name}, fd=fd)
    qmp.execute(command, {"uri": f"fd:{name}"})
    ended = qmp.wait_for(
        "MIGRATION", lambda data: data.get("status") in ("completed", "failed"), MIGRATION_TIMEOUT_S
    )
    if ended["status"] == "failed":
        found = qmp.execute("query-migrate")
        raise BackendFailed("microvm", command, str(found.get("error-desc", "QEMU gives no reason")))
