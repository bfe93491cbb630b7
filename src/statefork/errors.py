"""All errors of StateFork, by what caused them.

    StateForkError
    ├── WrongUse             the caller's: correct the call
    │   ├── UnknownMethod    also a ValueError, as published
    │   ├── UnknownDecider   also a ValueError
    │   ├── MissingOption    also a KeyError, as published
    │   ├── UnknownSnapshot
    │   ├── UnknownBranch
    │   ├── BranchExists
    │   ├── SnapshotExists
    │   └── Unsupported      this backend cannot do it, see its Capabilities
    ├── EnvironmentInUse     another process holds the environment
    ├── EnvironmentClosed    it was cleaned up
    ├── BackendUnavailable   a program, a kernel ability or a daemon is missing
    ├── BackendFailed        the mechanism refused or failed; the environment is as before
    ├── CommandTimedOut      the command was ended
    ├── ReplayFailed         a virtual snapshot could not be replayed; the branch is as before
    └── ForkIncomplete       some branches could not be made; the others run

The methods of the published interface (:class:`statefork.EnvironmentManager`) return ``None``, ``False`` or
``(-1, "", message)`` instead; with ``strict=True``, or through ``manager.core``, these are raised.
"""

from collections.abc import Mapping, Sequence

__all__ = [
    "BackendFailed",
    "BackendUnavailable",
    "BranchExists",
    "CommandTimedOut",
    "EnvironmentClosed",
    "EnvironmentInUse",
    "ForkIncomplete",
    "MissingOption",
    "ReplayFailed",
    "SnapshotExists",
    "StateForkError",
    "UnknownBranch",
    "UnknownDecider",
    "UnknownMethod",
    "UnknownSnapshot",
    "Unsupported",
    "WrongUse",
]


class StateForkError(Exception):
    """Anything that StateFork raises on purpose; ``hint`` says what to do next."""

    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class WrongUse(StateForkError):
    """The call makes no sense; nothing was done."""


class UnknownMethod(WrongUse, ValueError):
    """No method has this name."""

    def __init__(self, method: str, known: Sequence[str]) -> None:
        super().__init__(f"Unknown method: {method}", hint=f"one of {', '.join(known)}")


class UnknownDecider(WrongUse, ValueError):
    """No decider has this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"Unknown decider: {name}", hint=f"one of {', '.join(known)}")


class MissingOption(WrongUse, KeyError):
    """A method cannot do without this option."""

    def __init__(self, method: str, name: str) -> None:
        super().__init__(name, hint=f"{name}=… as an argument, --option {name}=… on the command line")
        self.method = method

    def __str__(self) -> str:
        return f"{self.method} needs the option {self.args[0]!r}"


class UnknownSnapshot(WrongUse):
    """No snapshot of this environment has that id."""

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(f"no snapshot {snapshot_id!r}", hint="list_snapshots() names those that exist")
        self.snapshot_id = snapshot_id


class UnknownBranch(WrongUse):
    """No live branch has that id."""

    def __init__(self, branch_id: str) -> None:
        super().__init__(f"no live branch {branch_id!r}", hint="list_branches() names those that exist")
        self.branch_id = branch_id


class BranchExists(WrongUse):
    """A branch has that id already."""

    def __init__(self, branch_id: str) -> None:
        super().__init__(f"branch {branch_id!r} exists", hint="choose another id")
        self.branch_id = branch_id


class SnapshotExists(WrongUse):
    """A snapshot has that id already."""

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(f"snapshot {snapshot_id!r} exists", hint="choose another id")
        self.snapshot_id = snapshot_id


class Unsupported(WrongUse):
    """This backend cannot do it."""

    def __init__(self, backend: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{backend} cannot {what}", hint=hint or "statefork backends shows what each can do")


class EnvironmentInUse(StateForkError):
    """Another process works with this environment."""


class EnvironmentClosed(StateForkError):
    """The environment was cleaned up."""


class BackendUnavailable(StateForkError):
    """Something that the backend needs is not on this host; nothing was done."""

    def __init__(self, backend: str, reason: str, *, remedy: str = "") -> None:
        super().__init__(f"{backend} is not available: {reason}", hint=remedy)
        self.backend = backend
        self.reason = reason


class BackendFailed(StateForkError):
    """The mechanism refused or failed. The environment is as it was before the call."""

    def __init__(self, backend: str, operation: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"{backend}: {operation} failed: {reason}", hint=hint)
        self.backend = backend
        self.operation = operation
        self.reason = reason


class CommandTimedOut(StateForkError):
    """The command ran out of time and was ended; ``output`` is what it had written."""

    def __init__(self, timeout_s: float, output: str = "") -> None:
        super().__init__(f"command timed out after {timeout_s:g} s")
        self.timeout_s = timeout_s
        self.output = output


class ReplayFailed(StateForkError):
    """A command of a virtual snapshot did not end as it did the first time. The branch is as before."""

    def __init__(self, snapshot_id: str, command: object, expected: int, got: int) -> None:
        super().__init__(
            f"virtual snapshot {snapshot_id} cannot be replayed: {command!r} ended with {got}, not {expected}",
            hint="restore a physical snapshot, or use AlwaysTrueDecider for commands that cannot be repeated",
        )
        self.snapshot_id = snapshot_id


class ForkIncomplete(StateForkError):
    """Some branches could not be made; ``made`` run, ``failures`` says why the others do not."""

    def __init__(self, made: Sequence[str], failures: Mapping[str, StateForkError]) -> None:
        reasons = "; ".join(f"{branch}: {error}" for branch, error in failures.items())
        super().__init__(f"{len(failures)} of {len(made) + len(failures)} branches failed: {reasons}")
        self.made = tuple(made)
        self.failures = dict(failures)
