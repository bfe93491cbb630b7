"""What a virtual machine monitor must be able to do to run microVMs. Two can: QEMU and Firecracker.

A machine has a directory of its own: its disk, its memory where that is a file, its sockets. A saved one is such a
directory too. All of them are on one file system, which copies files by reference.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statefork.backend import Availability
from statefork.backends.microvm.line import Line
from statefork.backends.microvm.process import VmProcess
from statefork.errors import BackendUnavailable

__all__ = ["DISK", "Driver", "Kernel", "Shape", "being_saved", "resume_interrupted"]

DISK = "disk"
"""The name of the disk in the directory of a machine, running or saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How big a machine is."""

    memory_mb: int
    vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a machine boots: an uncompressed kernel, the modules it needs, its version."""

    vmlinux: Path
    modules: Path
    version: str


class Driver(ABC):
    """One virtual machine monitor. Methods raise BackendFailed, and leave no process behind then."""

    name: str
    modules: tuple[str, ...]
    """The kernel modules that its devices need, apart from what they depend on themselves."""

    @classmethod
    @abstractmethod
    def probe(cls) -> Availability:
        """Whether this host can run it. Looks, changes nothing."""

    @classmethod
    def require(cls) -> None:
        """Raise BackendUnavailable, with what to install, unless this host can run it."""
        found = cls.probe()
        if not found.is_available:
            raise BackendUnavailable("microvm", found.reason, remedy=found.remedy)

    def to_handle(self) -> dict[str, str | int]:
        """What is needed to find the same driver again for a machine that it has made."""
        return {"driver": self.name}

    @abstractmethod
    def identity(self) -> str:
        """What a saved machine depends on: it can be loaded by the same monitor only."""

    @abstractmethod
    def boot(self, directory: Path, kernel: Kernel, initramfs: Path, shape: Shape) -> VmProcess:
        """Start a machine from its kernel; its disk is in ``directory``."""

    @abstractmethod
    def save(self, directory: Path, target: Path) -> None:
        """Save a running machine into the new directory ``target``; it keeps running, also if that fails."""

    @abstractmethod
    def resume(self, directory: Path) -> None:
        """Resume a machine that was stopped to be saved; one that runs is not changed."""

    @abstractmethod
    def load(self, image: Path, directory: Path, shape: Shape) -> VmProcess:
        """Start a saved machine in the new directory ``directory``."""

    @abstractmethod
    def connect(self, directory: Path, timeout_s: float) -> Line:
        """A connection to the relay inside the machine. Raises OSError."""

    def last_words(self, directory: Path) -> str:
        """What the machine wrote to its console, where that is kept: the end of it, for a failure's message."""
        try:
            text = (directory / "console").read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return " / ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())


_MARK = "being-saved"


@contextmanager
def being_saved(notes: Path) -> Iterator[None]:
    """Mark in ``notes``, for as long as the block lasts, that a machine is stopped because it is being saved.

    If we are killed, or the block fails, the mark stays there, so that the next caller knows.
    """
    (notes / _MARK).touch()
    yield
    (notes / _MARK).unlink()


def resume_interrupted(notes: Path, resume: Callable[[], None]) -> None:
    """Resume a machine if whoever saved it was killed, or failed, before doing so."""
    if (notes / _MARK).exists():
        resume()
        (notes / _MARK).unlink(missing_ok=True)
