"""gVisor's runtime, one call for each of its verbs that the backend needs."""

import glob
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from statefork.backend import CommandResult
from statefork.errors import CommandTimedOut
from statefork.relay_connection import RelayedClient
from waypoint.errors import AbilityMissing, HostError, ToolFailed, ToolTimedOut
from waypoint.kernel.processes.process_tree import read_process
from waypoint.kernel.processes.programs import DEVNULL, Finished, Popen, TimeoutExpired, run_tool, spawn
from waypoint.session.context import launcher_path

__all__ = [
    "INIT_PATH",
    "OVERLAY_IN_MEMORY",
    "Runsc",
    "Sandbox",
    "find_sandbox",
    "is_sandbox",
    "keeps_files",
    "working_platform",
]

INIT_PATH = "/.waypoint/init"
OVERLAY_IN_MEMORY = "--overlay2=root:memory"
"""What is written to the root file system is kept in the sandbox's memory, and so is part of its checkpoints."""

PLATFORMS = ("systrap", "ptrace")  # best first; kvm hangs on virtual machines that cannot nest
TRY_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 60.0
BEGIN_POLL_S = 0.02  # runsc writes the pid into a file, and no event says when
IMAGE_TIMEOUT_S = 600.0  # gigabytes of memory take a while


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """How runsc is called: ``root`` is where it records its containers, ``flags`` make every sandbox alike."""

    program: Path
    root: Path
    flags: tuple[str, ...]

    def start(self, container: str, bundle: Path, cgroup: Path) -> None:
        """Start the bundle's process in a sandbox of its own, all of it in ``cgroup``."""
        self._detach(("run", "--detach", "--bundle", os.fspath(bundle), container), cgroup)

    def restore(self, container: str, bundle: Path, image: Path, cgroup: Path) -> None:
        """Restore an image as a new container."""
        words = ("restore", "--detach", "--image-path", os.fspath(image), "--bundle", os.fspath(bundle))
        self._detach((*words, container), cgroup)

    def checkpoint(self, container: str, image: Path) -> None:
        """Save a running container, which keeps running. No exec may be open in it: see :meth:`open_execs`."""
        words = ("--compression=none", "--leave-running", "--image-path", os.fspath(image), container)
        run_tool(self._command("checkpoint", *words), timeout_s=IMAGE_TIMEOUT_S)

    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
    ) -> Finished:
        """Run a program in a container; return when it has ended, with whatever exit status."""
        return run_tool(
            self._command("exec", container, *argv),
            timeout_s=timeout_s,
            accept=range(256),
            stdin=DEVNULL if stdin is None else stdin,
            stdout=stdout,
        )

    def run(self, container: str, argv: Sequence[str], timeout_s: float | None) -> CommandResult:
        """As exec(), but a program that runs out of time is ended inside too, with all of its group."""
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            tempfile.NamedTemporaryFile(prefix="statefork-pid-") as pid_file,
        ):
            command = self._command("exec", "--internal-pid-file", pid_file.name, container, *argv)
            process = spawn(command, stdout=out, stderr=err)
            try:
                status = process.wait(timeout_s)
            except BaseException as error:
                self._end(container, process, Path(pid_file.name))
                if isinstance(error, TimeoutExpired):
                    raise CommandTimedOut(timeout_s or 0.0, _text(out)) from error
                raise
            return CommandResult(exit_code=status, output=_text(out), errors=_text(err))

    def _end(self, container: str, process: "Popen[bytes]", pid_file: Path) -> None:
        """End a program inside. `runsc exec` itself must not be killed before: the program would keep running."""
        if _await_begin(process, pid_file):
            pid = pid_file.read_text().strip()
            # Only a shell inside can kill its whole group; runsc can kill the program itself, also without a shell.
            group = ("/bin/sh", "-c", 'kill -s KILL -- "-$1"', "sh", pid)
            if self.exec(container, group, timeout_s=CALL_TIMEOUT_S).status != 0:
                words = ("kill", "--pid", pid, container, "KILL")
                run_tool(self._command(*words), timeout_s=CALL_TIMEOUT_S, accept=range(256))
        try:
            process.wait(CALL_TIMEOUT_S)
        except TimeoutExpired as error:
            process.kill()
            process.wait()
            raise ToolTimedOut(self._command("exec", container), CALL_TIMEOUT_S) from error

    def connect(self, container: str) -> RelayedClient:
        """Connect to the init inside."""
        return RelayedClient(self._command("exec", container, INIT_PATH, "relay"))

    def open_execs(self, container: str) -> list[int]:
        """The processes that `runsc exec` started: those that have no parent inside.

        An image that is saved while there is one cannot be restored.
        """
        table = run_tool(self._command("ps", container), timeout_s=CALL_TIMEOUT_S).stdout
        rows = [line.split() for line in table.splitlines()[1:]]
        return [int(row[1]) for row in rows if row[2] == "0" and row[1] != "1"]

    def _command(self, *words: str) -> tuple[str, ...]:
        return (os.fspath(self.program), "--root", os.fspath(self.root), *self.flags, *words)

    def _detach(self, words: tuple[str, ...], cgroup: Path) -> None:
        """Call a verb that leaves a sandbox behind. It must not inherit our output: a reader would wait for it."""
        # The log is among the container's own files, which are removed with it: we may be killed.
        with tempfile.NamedTemporaryFile(prefix="log-", dir=self.root) as log:
            command = (
                *(os.fspath(launcher_path()), "enter", "--cgroup", os.fspath(cgroup), "--"),
                *self._command("--log", log.name, "--log-format", "json", *words),
            )
            process = spawn(command, stdout=DEVNULL, stderr=DEVNULL)
            try:
                status = process.wait(IMAGE_TIMEOUT_S)
            except TimeoutExpired as error:
                process.kill()
                process.wait()
                raise ToolTimedOut(command, IMAGE_TIMEOUT_S) from error
            if status:
                raise ToolFailed(command, status, _reason(Path(log.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A container that someone else runs: its sandbox's pid, its description, and the flags it was started with."""

    pid: int
    spec: dict[str, Any]
    flags: tuple[str, ...]

    @property
    def life(self) -> str:
        """What distinguishes it from every other sandbox, also from a later one of the same name or pid."""
        process = read_process(self.pid)
        return f"{self.pid} {process.started if process else 0}"


def find_sandbox(root: Path, container: str) -> Sandbox:
    """Read what runsc has recorded about a running container. Raises AbilityMissing if there is none."""
    files = list(root.glob(f"{glob.escape(container)}_sandbox:*.state"))
    if not files:
        raise AbilityMissing(
            f"no container {container!r} in {root}",
            hint=f"runsc --root {root} list; runtime_root= names another directory",
        )
    recorded = json.loads(files[0].read_text())
    pid = int(recorded["sandbox"]["pid"])
    if not is_sandbox(pid):
        raise AbilityMissing(f"container {container!r} does not run")
    spec = recorded["spec"]
    spec["process"]["terminal"] = False
    return Sandbox(pid=pid, spec=spec, flags=_flags_of(pid))


def is_sandbox(pid: int) -> bool:
    return _words_of(pid)[:1] == ["runsc-sandbox"]


def keeps_files(flags: Sequence[str]) -> bool:
    """Whether changes to the root file system are kept by the sandbox, and so in its images."""
    chosen = [flag.partition("=")[2] for flag in flags if flag.startswith("--overlay2=")]
    return not chosen or chosen[-1].startswith(("root:", "all:"))


def _flags_of(pid: int) -> tuple[str, ...]:
    """The flags that a sandbox like it must be started with, without those of its root, its log and its descriptors."""
    words = _words_of(pid)
    flags = words[1 : words.index("boot")] if "boot" in words else []
    ours = [
        flag for flag in flags if not flag.startswith(("--root=", "--log", "--debug")) and "-fd=" not in flag
    ]
    return (*ours, "--ignore-cgroups=true")


def _words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


@cache
def working_platform(program: Path) -> str | None:
    """The best way for gVisor to catch system calls that works on this host, found by trying."""
    with tempfile.TemporaryDirectory(prefix="statefork-runsc-") as root:
        for platform in PLATFORMS:
            flags = ("--root", root, f"--platform={platform}", "--network=none", "--ignore-cgroups")
            try:
                run_tool((os.fspath(program), *flags, "do", "/bin/true"), timeout_s=TRY_TIMEOUT_S)
            except HostError:
                continue
            return platform
    return None


def _await_begin(process: "Popen[bytes]", pid_file: Path) -> bool:
    """Wait until a program that is to be ended has begun; False if it has ended, or never began."""
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while not pid_file.read_text().strip():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(BEGIN_POLL_S)
    return True


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _reason(log: Path) -> str:
    """The last thing that runsc complained about."""
    messages = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("level") in ("error", "fatal", "warning"):
            messages.append(str(entry.get("msg", "")).strip())
    return messages[-1] if messages else "no reason given"
