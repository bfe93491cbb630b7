"""The seam between StateFork and a mechanism: what a backend can do, and what it must implement.

A backend knows *instances* (live environments) and *images* (saved ones), and how to turn one into the other. Both are
plain data, so that an environment can be reopened by another process. It knows nothing of snapshot trees, branches,
deciders or statistics: :mod:`statefork.environment` has those, once for all backends.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from statefork.errors import BackendUnavailable, Unsupported

__all__ = [
    "Availability",
    "Backend",
    "Capabilities",
    "Command",
    "CommandResult",
    "EVERYTHING",
    "Handle",
    "Image",
    "Instance",
]

Command = str | Sequence[str]
"""A line for the shell, or the words of one command."""

Handle = Mapping[str, str | int]
"""What a backend needs to find an instance or an image again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What is restored with a snapshot, and how branches can live.

    Every claim is proved by the contract tests, and what is not claimed is proved to be absent.
    """

    files: bool = False
    memory: bool = False
    processes: bool = False
    shell: bool = False
    terminal: bool = False
    sockets: bool = False
    live_fork: bool = False
    concurrent_branches: bool = False

    def names(self) -> list[str]:
        return [entry.name for entry in fields(self) if getattr(self, entry.name)]


EVERYTHING = Capabilities(**{entry.name: True for entry in fields(Capabilities)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a backend can be used here; if not, why, and what would change that."""

    is_available: bool
    reason: str = ""
    remedy: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended. Where the shell itself is kept, both outputs come through its terminal, as ``output``."""

    exit_code: int
    output: str = ""
    errors: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A live environment."""

    id: str
    handle: Handle = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A saved environment. ``sizes`` says what it takes on disk, in bytes, by kind: what it adds, not what it shares."""

    id: str
    handle: Handle = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


class Backend(ABC):
    """One mechanism, for one environment.

    ``home`` is a directory of the environment's own; ``tag`` is unique and may be part of names that all processes of the
    host share (containers, images). Methods raise BackendFailed, and what they began is undone then. They are called by
    several threads at once, but never twice at the same time for one instance; only ``discard`` and ``close`` may come while
    a command or a copy runs in it, which ends then.
    """

    name: str
    capabilities: Capabilities
    runs_programs = True
    """Whether a command can be any program; else only what the backend itself knows."""
    path_options: tuple[str, ...] = ()
    """The options that name a path on the host which is used again when the environment is opened."""
    program_options: tuple[str, ...] = ()
    """Those that name a program: a path if there is a slash in it, else a name to be looked up."""

    def __init__(self, home: Path, tag: str) -> None:
        self.home = home
        self.tag = tag

    @classmethod
    @abstractmethod
    def probe(cls) -> Availability:
        """Whether this host can run the backend. Looks, changes nothing."""

    @classmethod
    def probe_with(cls, options: Mapping[str, object]) -> Availability:
        """As :meth:`probe`, for what the options ask for: another daemon, another program."""
        return cls.probe()

    @classmethod
    def require(cls, options: Mapping[str, object]) -> None:
        """Raise BackendUnavailable, with what to install, unless the host can run the backend."""
        found = cls.probe_with(options)
        if not found.is_available:
            raise BackendUnavailable(cls.name, found.reason, remedy=found.remedy)

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as they are recorded: they mean the same to whoever opens the environment, in any directory."""

        def settle(name: str, value: Any) -> Any:
            is_path = name in cls.path_options or (name in cls.program_options and os.sep in str(value))
            return os.path.abspath(value) if is_path and isinstance(value, str | os.PathLike) else value

        return {name: settle(name, value) for name, value in options.items()}

    @classmethod
    def for_options(cls, options: Mapping[str, object]) -> "type[Backend]":
        """The class that does what the options ask for, where one method can be had in several ways."""
        return cls

    @abstractmethod
    def start(self, branch_id: str) -> Instance:
        """Make the first instance, ready to run commands."""

    def attach(self) -> Instance:
        """Take over the environment that the options name. Someone else made it, and it is left to them at the end."""
        raise Unsupported(self.name, "attach to an environment that exists")

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> str | None:
        """What identifies the environment that is attached to, so that its history is found again."""
        return None

    def is_still(self, instance: Instance) -> bool:
        """Whether ``instance``, attached to earlier, is still what the options name: names are used again."""
        return True

    @abstractmethod
    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        """Save the instance, which keeps running."""

    def park(self, instance: Instance, snapshot_id: str) -> Image:
        """Save the instance, which is discarded next; by default it keeps running until then."""
        return self.snapshot(instance, snapshot_id)

    @abstractmethod
    def spawn(self, image: Image, branch_id: str) -> Instance:
        """Start a new instance from an image, ready to run commands, in addition to those that live."""

    def replace(self, instance: Instance, image: Image, branch_id: str) -> Instance:
        """Bring the instance back to an image; by default a new one replaces it. On failure the old one lives on."""
        return self.supersede(instance, self.spawn(image, branch_id))

    def supersede(self, instance: Instance, successor: Instance) -> Instance:
        """Replace ``instance``, which ends, by ``successor``."""
        self.discard(instance)
        return successor

    @abstractmethod
    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        """Run a command and return when it has ended. Raises CommandTimedOut if it took too long and was ended."""

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        raise Unsupported(self.name, "copy files into the environment")

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        raise Unsupported(self.name, "copy files out of the environment")

    @abstractmethod
    def discard(self, instance: Instance) -> None:
        """End an instance and remove what it has; it may have been removed already."""

    @abstractmethod
    def delete(self, image: Image) -> None:
        """Remove an image; it may have been removed already. Images made from it stay whole."""

    def is_alive(self, instance: Instance) -> bool:
        """Whether commands can be run in it."""
        return True

    def image_sizes(self, image: Image) -> Mapping[str, int]:
        """What an image takes on disk, for backends where finding out at each snapshot is too much work."""
        return image.sizes

    def process_id(self, instance: Instance) -> int | None:
        """The host's pid of the instance's first process, where there is one."""
        return None

    def known_images(self) -> list[tuple[Image, str | None]]:
        """Images that the mechanism itself remembers, each with its parent's id; for attached environments."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Remove whatever is left of the environment's instances and images, and nothing else."""
