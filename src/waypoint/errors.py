"""Every error a caller can meet, by whose doing it is.

::

    WaypointError
    ├── UsageError              2    the request itself is wrong; nothing was touched
    │   └── InvalidName         2
    ├── SessionError
    │   ├── NotFound            3    no such session, branch, checkpoint or base
    │   ├── AlreadyExists       5    the name is taken
    │   ├── Busy                5    someone else works on the branch (only with no-wait)
    │   ├── BranchReplaced      5    the branch was restored while a command ran in it
    │   └── Broken              6    the branch no longer answers
    ├── CopyFailed              1    a file cannot be copied into or out of a branch
    ├── EngineError             6    the kernel or CRIU refused; the branch runs on as before
    │   ├── ForkIncomplete      6    some of several new branches could not be made; the others are there
    │   ├── DumpFailed          6
    │   ├── RestoreFailed       6
    │   ├── LaunchFailed        6
    │   └── CleanupFailed       6    something could not be undone; named in the message
    ├── ShellError              6    the shell of a terminal cannot take the command
    │   ├── ShellDied           6
    │   ├── CommandTimedOut   124
    │   ├── OutputLimitExceeded 125
    │   └── WaitTimedOut      124
    ├── StoreError              6
    │   ├── PoolFull            6
    │   ├── PoolNotReady        7    run ``waypoint setup``
    │   └── CatalogueTooNew     7    written by a newer version
    └── HostError               7    this machine lacks something
        ├── NotPermitted        4
        ├── AbilityMissing      7
        ├── ToolMissing         7
        ├── ToolFailed          6
        └── ToolTimedOut        6

The number is the exit code of the command line. ``code`` is the stable name used in
``--json`` output; it never changes for a class once released. The docstring of a class
says in what state the session is when it is raised.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which costs a third of the interpreter's own start to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class WaypointError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1
    code = "failure"
    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class UsageError(WaypointError):
    """The request cannot be understood. Nothing was touched."""

    exit_code = 2
    code = "usage"


class InvalidName(UsageError):
    """A name that may not be used as an id. Nothing was touched."""

    code = "invalid_name"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"invalid {kind} name {name!r}",
            hint="use letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit",
        )
        self.name = name


class SessionError(WaypointError):
    """The session, branch or checkpoint is not in the state the request needs."""


class NotFound(SessionError):
    """The named thing does not exist. Nothing was touched."""

    exit_code = 3
    code = "not_found"

    def __init__(self, kind: str, name: str, *, hint: str = "") -> None:
        super().__init__(f"no {kind} named {name!r}", hint=hint)
        self.kind = kind
        self.name = name


class AlreadyExists(SessionError):
    """The name is taken. Nothing was touched."""

    exit_code = 5
    code = "already_exists"

    def __init__(self, kind: str, name: str, *, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} already exists", hint=hint)
        self.kind = kind
        self.name = name


class Busy(SessionError):
    """Another process is working on the branch. Nothing was touched."""

    exit_code = 5
    code = "busy"


class BranchReplaced(SessionError):
    """The branch was restored or destroyed while a command ran in it; the command is gone with it."""

    exit_code = 5
    code = "branch_replaced"


class Broken(SessionError):
    """The branch does not answer any more. Its checkpoints are intact: restore one."""

    exit_code = 6
    code = "broken"


class CopyFailed(WaypointError):
    """A file cannot be copied. The branch runs on, and no file at the destination is half of the old and the new."""

    code = "copy_failed"
    hint = "what was at the destination is whole; see to the cause and copy again"

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"cannot copy {path!r}: {reason}", hint=hint)
        self.path = path
        self.reason = reason


class EngineError(WaypointError):
    """The kernel or CRIU refused an operation. The branch runs as before it."""

    exit_code = 6
    code = "engine"


class DumpFailed(EngineError):
    """CRIU could not save the processes. The branch runs on and no checkpoint was made."""

    code = "dump_failed"

    def __init__(self, branch: str, reason: str, log_file: Path) -> None:
        super().__init__(f"cannot checkpoint {branch}: {reason}", hint=f"CRIU's log: {log_file}")
        self.branch = branch
        self.reason = reason
        self.log_file = log_file


class RestoreFailed(EngineError):
    """CRIU could not bring the processes back. The branch that was to be replaced runs on."""

    code = "restore_failed"

    def __init__(self, checkpoint: str, reason: str, log_file: Path) -> None:
        super().__init__(
            f"cannot restore checkpoint {checkpoint!r}: {reason}", hint=f"CRIU's log: {log_file}"
        )
        self.checkpoint = checkpoint
        self.reason = reason
        self.log_file = log_file


class LaunchFailed(EngineError):
    """A new branch could not be started; nothing of it is left."""

    code = "launch_failed"


class ForkIncomplete(EngineError):
    """Some of the branches asked for could not be made; nothing is left of those. The others run."""

    code = "fork_incomplete"
    hint = "the others run; fork again to make the rest"

    def __init__(self, made: Sequence[str], errors: Mapping[str, Exception]) -> None:
        reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
        super().__init__(f"{len(errors)} of {len(made) + len(errors)} branches could not be made: {reasons}")
        self.made = tuple(made)
        self.errors = dict(errors)


class CleanupFailed(EngineError):
    """Undoing a step failed: what the message names is left behind. `waypoint cleanup` tries again."""

    code = "cleanup_failed"
    hint = "the next waypoint command tries again"

    def __init__(self, operation: str, failures: Sequence[str]) -> None:
        super().__init__(f"{operation}: cannot clean up: {'; '.join(failures)}")
        self.failures = tuple(failures)


class ShellError(WaypointError):
    """The terminal's shell cannot take the command. The branch runs on."""

    exit_code = 6
    code = "shell"


class ShellDied(ShellError):
    """The shell ended (``exit``, a signal). The branch's other processes run on."""

    code = "shell_died"

    def __init__(self, message: str, *, output: bytes = b"") -> None:
        super().__init__(
            message,
            hint="start a fresh one (waypoint terminal new SESSION[:BRANCH] NAME) or restore a checkpoint",
        )
        self.output = output


class CommandTimedOut(ShellError):
    """The command ran out of time. It was interrupted and the shell is still there, unless the message says
    that the command resists."""

    exit_code = 124
    code = "timeout"

    def __init__(self, timeout_s: float, output: bytes = b"", *, resists: bool = False) -> None:
        tail = " and cannot be interrupted; it still runs" if resists else ""
        hint = (
            "close its terminal (waypoint terminal close, then new), or restore a checkpoint"
            if resists
            else "it was ended and the shell is free"
        )
        super().__init__(f"command timed out after {timeout_s:g} s{tail}", hint=hint)
        self.timeout_s = timeout_s
        self.output = output


class OutputLimitExceeded(ShellError):
    """The command wrote more than it may. It was interrupted and the shell is still there."""

    exit_code = 125
    code = "output_limit"

    def __init__(self, limit_bytes: int, output: bytes = b"") -> None:
        super().__init__(
            f"the command wrote more than {limit_bytes} bytes and was ended",
            hint="allow more (--output-limit), or let it write into a file",
        )
        self.output = output


class WaitTimedOut(ShellError):
    """What was waited for did not happen in time. Nothing was changed."""

    exit_code = 124
    code = "wait_timeout"
    hint = "wait again, with a longer --timeout"


class StoreError(WaypointError):
    """The state directory cannot hold or give what was asked. Running branches are untouched."""

    exit_code = 6
    code = "store"


class PoolFull(StoreError):
    """No space left in the pool. The branch runs on and no checkpoint was made."""

    code = "pool_full"


class PoolNotReady(StoreError):
    """The state directory has not been set up."""

    exit_code = 7
    code = "pool_not_ready"


class CatalogueTooNew(StoreError):
    """The catalogue was written by a newer version and is left alone."""

    exit_code = 7
    code = "catalogue_too_new"


class HostError(WaypointError):
    """This machine lacks what the request needs. Nothing was touched."""

    exit_code = 7
    code = "host"


class NotPermitted(HostError):
    """Root is needed. Nothing was touched."""

    exit_code = 4
    code = "not_permitted"


class AbilityMissing(HostError):
    """The kernel or an installed program cannot do what is needed; see ``waypoint doctor``."""

    code = "ability_missing"


class ToolMissing(HostError):
    """A program is not installed."""

    code = "tool_missing"

    def __init__(self, tool: str, *, package: str = "") -> None:
        hint = f"install it: apt-get install {package}" if package else "see: waypoint doctor"
        super().__init__(f"program not found: {tool}", hint=hint)
        self.tool = tool


class ToolFailed(HostError):
    """A program we called ended with an error."""

    exit_code = 6
    code = "tool_failed"

    def __init__(self, command: Sequence[str], status: int, stderr: str) -> None:
        last = stderr.strip().splitlines()[-1] if stderr.strip() else "no message"
        super().__init__(f"{command[0]} failed with status {status}: {last}")
        self.command = tuple(command)
        self.status = status
        self.stderr = stderr


class ToolTimedOut(HostError):
    """A program we called did not end in time and was killed."""

    exit_code = 6
    code = "tool_timed_out"

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        super().__init__(f"{command[0]} did not end within {timeout_s:g} s and was killed")
        self.command = tuple(command)
        self.timeout_s = timeout_s
