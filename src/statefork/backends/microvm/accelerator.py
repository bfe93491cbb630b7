"""Whether KVM on this host really runs a stock kernel.

``/dev/kvm`` alone says little: there are hosts whose KVM takes only kernels that were made for it, and emulates all
others so slowly that they never boot. So it is tried once, for a few seconds; the verdict is kept next to the kernel.
"""

import json
import os
import select
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from statefork.backends.microvm.driver import Kernel
from statefork.backends.microvm.kvm import device_problem
from statefork.backends.microvm.qemu import qemu_version, start_qemu
from statefork.backends.microvm.sockets import connect_in, listening_in
from statefork.errors import BackendFailed
from waypoint.store.lock import locked

__all__ = ["Verdict", "known_verdict", "try_kvm"]

FIRST_WORD = b"Linux version"
BOOT_TIMEOUT_S = 5.0  # a working KVM prints the first words within a tenth of a second


@dataclass(frozen=True, slots=True)
class Verdict:
    works: bool
    reason: str


def known_verdict(directory: Path) -> Verdict | None:
    """The verdict found earlier on this host; None if there is none, or the host's kernel has changed since."""
    try:
        found = json.loads((directory / "kvm.json").read_text())
        if found["host"] == os.uname().release:
            return Verdict(found["works"], found["reason"])
    except (OSError, ValueError, KeyError):
        pass  # never tried, or recorded by another version: try again
    return None


def try_kvm(directory: Path, kernel: Kernel) -> Verdict:
    """The verdict; the first one in a state directory takes up to five seconds, later ones are remembered."""
    problem = device_problem()
    if problem is not None:
        return Verdict(False, problem)
    with locked(directory / "kvm.lock", what="the trial of KVM"):
        verdict = known_verdict(directory)
        if verdict is None:
            verdict = _try(kernel)
            record = {"host": os.uname().release, "works": verdict.works, "reason": verdict.reason}
            (directory / "kvm.json").write_text(json.dumps({**record, "qemu": qemu_version()}))
    return verdict


def _try(kernel: Kernel) -> Verdict:
    with (
        tempfile.TemporaryDirectory(prefix="statefork-kvm-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console,
    ):
        directory = Path(name)
        with listening_in(directory, "console") as listener:
            connect_in(directory, "console", console, BOOT_TIMEOUT_S)
            command = ["-M", "microvm,pit=on,pic=on,rtc=on", "-accel", "kvm", "-cpu", "host", "-m", "128"]
            command += ["-kernel", os.fspath(kernel.vmlinux), "-append", "console=ttyS0 panic=-1 reboot=t"]
            command += [
                "-chardev",
                f"socket,id=console,fd={listener},server=on,wait=off",
                "-serial",
                "chardev:console",
            ]
            try:
                process = start_qemu(directory, command, pass_fds=(listener,))
            except BackendFailed as error:
                return Verdict(False, f"QEMU cannot use KVM here: {error.reason.splitlines()[0]}")
        try:
            if _says(console, FIRST_WORD):
                return Verdict(True, "KVM boots a stock kernel")
            return Verdict(False, f"KVM here does not boot a stock kernel within {BOOT_TIMEOUT_S:g} s")
        finally:
            process.end()


def _says(console: socket.socket, word: bytes) -> bool:
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    said = b""
    while word not in said:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([console], [], [], left)[0]:
            return False
        try:
            data = console.recv(4096)
        except ConnectionResetError:
            return False
        if not data:  # the machine has ended
            return False
        said += data
    return True
