"""The host process of a microVM. Later callers find it again by its pid and its start time."""

import json
import os
import select
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from statefork.backend import Handle
from statefork.errors import BackendFailed, BackendUnavailable
from waypoint.errors import ToolMissing, ToolTimedOut
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = ["VmProcess", "last_words", "start_in_background"]

NOTE = "process.json"
PID_FILE, ERRORS = "pid", "errors"
VARIABLE = "STATEFORK_MACHINE"
"""A variable of a background program: where its notes are. It distinguishes it from others that get its pid later."""

END_TIMEOUT_S = 60.0  # a process that waits for a disk dies only after that
FORK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class VmProcess:
    """A process that is not our child, hence known by more than its pid, which may be used again."""

    pid: int
    started: int
    """In clock ticks since the host was started."""

    @classmethod
    def of(cls, pid: int) -> "VmProcess":
        """Raises ProcessLookupError if there is none."""
        return cls(pid, _facts(pid)[1])

    @classmethod
    def from_handle(cls, handle: Handle) -> "VmProcess":
        return cls(int(handle["pid"]), int(handle["started"]))

    def to_handle(self) -> dict[str, str | int]:
        return {"pid": self.pid, "started": self.started}

    def note_in(self, directory: Path) -> None:
        """Record in a machine's directory which process it is."""
        (directory / NOTE).write_text(json.dumps(self.to_handle()))

    @classmethod
    def noted_in(cls, directory: Path) -> "VmProcess | None":
        """The process of the machine in a directory, also if the caller was killed before it could record it."""
        try:
            return cls.from_handle(json.loads((directory / NOTE).read_text()))
        except (OSError, ValueError, KeyError):
            return cls.begun(directory)

    @classmethod
    def begun(cls, notes: Path) -> "VmProcess | None":
        """The process that start_in_background() has started, by the pid in its file, if that is still the same one."""
        try:
            pid = int((notes / PID_FILE).read_text())
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return cls.of(pid) if os.fsencode(f"{VARIABLE}={notes}") in variables else None
        except (OSError, ValueError):
            return None  # it was never started, or has ended

    def is_alive(self) -> bool:
        try:
            state, started = _facts(self.pid)
        except ProcessLookupError:
            return False
        return started == self.started and state not in "ZX"

    def end(self) -> None:
        """Kill it and wait until it is dead; it may be dead already."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if not self.is_alive():
                return
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not select.select([pidfd], [], [], END_TIMEOUT_S)[0]:
                raise BackendFailed("microvm", "discard", f"process {self.pid} cannot be killed")
        finally:
            os.close(pidfd)


# The shell writes down its pid before it becomes the program: then it can be found and ended, also if we are killed.
_BEGIN = 'echo $$ >"$1" && exec >/dev/null 2>"$2" && shift 2 && exec "$@"'


def start_in_background(command: Sequence[str], notes: Path, *, pass_fds: Sequence[int] = ()) -> None:
    """Start a program that is not our child. Its pid and its errors are written to files in ``notes``."""
    words = ("setsid", "--fork", "sh", "-c", _BEGIN, "sh")
    files = (os.fspath(notes / PID_FILE), os.fspath(notes / ERRORS))
    for file in files:
        Path(file).write_bytes(b"")  # of an earlier one
    try:
        run_tool(
            (*words, *files, *command),
            timeout_s=FORK_TIMEOUT_S,
            pass_fds=pass_fds,
            env={**CLEAN_ENV, VARIABLE: os.fspath(notes)},
        )
    except ToolMissing as error:
        raise BackendUnavailable("microvm", str(error), remedy="apt-get install util-linux") from error
    except ToolTimedOut as error:
        raise BackendFailed("microvm", "start", str(error)) from error


def last_words(notes: Path) -> str:
    """The errors that a background program has printed."""
    return (notes / ERRORS).read_text(errors="replace").strip()


def _facts(pid: int) -> tuple[str, int]:
    """State and time of start, from /proc/PID/stat; the name before them may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    return fields[0], int(fields[19])
