"""Every error a caller can get, grouped by what caused it.

::

    WaypointError
    ├── UsageError              2    the request itself is wrong; nothing was touched
    │   ├── InvalidName         2
    │   ├── BadSyntax           2    a command that is not valid bash; nothing of it was run
    │   └── CommandTooLong      2
    ├── SessionError
    │   ├── NotFound            3    no such session, branch, checkpoint or base
    │   ├── AlreadyExists       5    the name is taken
    │   ├── Busy                5    another caller works on the branch (only with no-wait)
    │   ├── BranchReplaced      5    the branch was restored while a command ran in it
    │   ├── Suspended           5    the branch is suspended to disk: resume its session
    │   └── Broken              6    the branch no longer answers
    ├── CopyFailed              1    a file cannot be copied into or out of a branch
    ├── BuildFailed             1    a base could not be built, fetched or unpacked; nothing of it is left
    ├── EngineError             6    the kernel or CRIU refused; the branch keeps running as before
    │   ├── ForkIncomplete      6    some of several new branches could not be made; the others run
    │   │   └── ResumeIncomplete 6   some branches of a session could not be resumed; the others run
    │   ├── DumpFailed          6
    │   ├── RestoreFailed       6
    │   ├── LaunchFailed        6
    │   ├── ShareUnavailable    6    a volume or secret of the host cannot be mounted
    │   ├── BaseGone            6    the base directory of a session was removed, moved or replaced by a link
    │   ├── BaseMountGone       6    a file system of the host that the session uses is no longer mounted
    │   └── CleanupFailed       6    a step could not be undone; the message names it
    ├── ShellError              6    the shell of a terminal cannot take the command
    │   ├── ShellDied           6
    │   ├── CommandTimedOut   124
    │   ├── OutputLimitExceeded 125
    │   └── WaitTimedOut      124
    ├── StoreError              6
    │   ├── PoolFull            6
    │   ├── DiskLimitReached    6    a branch has used all the space that it may take in the pool
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
says in what state the session is after the error.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import takes a third as long as the interpreter's own start
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    E = TypeVar("E", bound="ShellError")


_NAME_HINT = "use letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit"


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
    """The name may not be used as an id. Nothing was touched."""

    code = "invalid_name"

    def __init__(self, kind: str, name: str, *, hint: str = _NAME_HINT) -> None:
        super().__init__(f"invalid {kind} name {name!r}", hint=hint)
        self.name = name


class BadSyntax(UsageError):
    """The command is not valid bash. Nothing of it was run."""

    code = "bad_syntax"
    hint = "correct the command; is a quote, a bracket, an if or a do not closed?"


class CommandTooLong(UsageError):
    """The command has more bytes than a shell is given. Nothing of it was run."""

    code = "command_too_long"


class SessionError(WaypointError):
    """The session, branch or checkpoint is not in the state the request needs."""


class NotFound(SessionError):
    """The named thing does not exist. Nothing was touched."""

    exit_code = 3
    code = "not_found"

    def __init__(self, kind: str, name: str | int, *, hint: str = "") -> None:
        which = f"named {name!r}" if isinstance(name, str) else f"{name}"
        super().__init__(f"no {kind} {which}", hint=hint)
        self.kind = kind
        self.name = str(name)


class AlreadyExists(SessionError):
    """The name is taken. Nothing was touched."""

    exit_code = 5
    code = "already_exists"
    hint = "choose another name"

    def __init__(self, kind: str, name: str, *, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} already exists", hint=hint)
        self.kind = kind
        self.name = name


class Busy(SessionError):
    """Another process is working on the branch. Nothing was touched."""

    exit_code = 5
    code = "busy"


class BranchReplaced(SessionError):
    """The branch was restored or destroyed while a command ran in it; the command ended with it."""

    exit_code = 5
    code = "branch_replaced"


class Suspended(SessionError):
    """The branch is suspended to disk, so nothing of it runs. Nothing was touched."""

    exit_code = 5
    code = "suspended"

    def __init__(self, session_id: str, branch: str) -> None:
        super().__init__(
            f"branch {branch!r} of session {session_id} is suspended",
            hint=f"resume the session: waypoint resume {session_id}",
        )


class Broken(SessionError):
    """The branch no longer answers. Its checkpoints are intact: restore one."""

    exit_code = 6
    code = "broken"


class CopyFailed(WaypointError):
    """A file cannot be copied. The branch keeps running; each file at the destination is the old one or the new one."""

    code = "copy_failed"
    hint = "no file at the destination is half written; fix the cause and copy again"

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"cannot copy {path!r}: {reason}", hint=hint)
        self.path = path
        self.reason = reason


class BuildFailed(WaypointError):
    """A base could not be made. Nothing of it is left, and no session was created."""

    code = "build_failed"
    hint = "fix what the message names and try again; steps that succeeded are not repeated"


class EngineError(WaypointError):
    """The kernel or CRIU refused an operation. The branch keeps running as before."""

    exit_code = 6
    code = "engine"


class DumpFailed(EngineError):
    """The processes could not be saved. The branch keeps running and no checkpoint was made."""

    code = "dump_failed"

    def __init__(self, branch: str, reason: str, log_file: Path | None = None, *, hint: str = "") -> None:
        super().__init__(f"cannot checkpoint {branch}: {reason}", hint=hint or f"CRIU's log: {log_file}")
        self.branch = branch
        self.reason = reason
        self.log_file = log_file


class RestoreFailed(EngineError):
    """CRIU could not restore the processes. The branch that they were to replace keeps running."""

    code = "restore_failed"

    def __init__(self, checkpoint: str, reason: str, log_file: Path, *, hint: str = "") -> None:
        super().__init__(
            f"cannot restore checkpoint {checkpoint!r}: {reason}", hint=hint or f"CRIU's log: {log_file}"
        )
        self.checkpoint = checkpoint
        self.reason = reason
        self.log_file = log_file


class LaunchFailed(EngineError):
    """A new branch could not be started; nothing of it is left."""

    code = "launch_failed"


class ShareUnavailable(EngineError):
    """A volume or secret of the host cannot be mounted. Nothing is left of the branch that needed it."""

    code = "share_unavailable"
    hint = "checkpoints do not contain it: put it back on the host and try again"

    def __init__(self, share: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"cannot mount {share}: {reason}", hint=hint)
        self.share = share
        self.reason = reason


class BaseGone(EngineError):
    """The base directory of a session was removed, moved or replaced by a link since the session began."""

    code = "base_gone"

    def __init__(self, session: str, path: str) -> None:
        super().__init__(
            f"{path}, the base of session {session}, is gone or has become a link",
            hint="put the directory back at the same path and repeat the command",
        )


class BaseMountGone(EngineError):
    """A file system of the host that was mounted when a session began is no longer mounted.

    The changes of the session there are a layer over its files, so no branch can be restored without it.
    """

    code = "base_mount_gone"

    def __init__(self, session: str, paths: Sequence[str]) -> None:
        many = len(paths) > 1
        super().__init__(
            f"{', '.join(paths)}: the host had {'file systems' if many else 'a file system'} mounted there when session"
            f" {session} began, and {'not all of them are' if many else 'it is not'} mounted now",
            hint="mount it again on the host, at the same path, and repeat the command",
        )


class ForkIncomplete(EngineError):
    """Some of the branches asked for could not be made; nothing is left of those. The others run."""

    code = "fork_incomplete"
    hint = "the others run; fork again to make the rest"
    what = "made"

    def __init__(self, made: Sequence[str], errors: Mapping[str, Exception]) -> None:
        reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
        super().__init__(
            f"{len(errors)} of {len(made) + len(errors)} branches could not be {self.what}: {reasons}"
        )
        self.made = tuple(made)
        self.errors = dict(errors)


class ResumeIncomplete(ForkIncomplete):
    """Some branches of a suspended session could not be resumed and stay suspended. The others run."""

    code = "resume_incomplete"
    hint = "the others run; fix the cause and resume again, or fork a checkpoint"
    what = "resumed"


class CleanupFailed(EngineError):
    """Undoing a step failed: what the message names is left behind. `waypoint cleanup` tries again."""

    code = "cleanup_failed"
    hint = "the next waypoint command tries again"

    def __init__(self, operation: str, failures: Sequence[str]) -> None:
        super().__init__(f"{operation}: cannot clean up: {'; '.join(failures)}")
        self.failures = tuple(failures)


class LimitReached:
    """A limit that a branch reached while a command ran: not an error, but the reason of some.

    ``times`` is how often it stopped something; None if that is not counted.
    """

    __slots__ = ("maximum", "message", "name", "times")

    def __init__(self, name: str, maximum: int, times: int | None, message: str) -> None:
        self.name = name
        self.maximum = maximum
        self.times = times
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"LimitReached({self.message!r})"


class ShellError(WaypointError):
    """The terminal's shell cannot take the command. The branch keeps running.

    ``limits_reached`` are the limits that the branch reached while the command ran.
    """

    exit_code = 6
    code = "shell"
    limits_reached: tuple[LimitReached, ...] = ()

    def because_of(self: E, limits_reached: tuple[LimitReached, ...]) -> E:
        """Add these limits to the error and to its message; return the error."""
        if limits_reached:
            self.limits_reached = limits_reached
            self.args = ("; ".join(map(str, (self, *limits_reached))),)
        return self


class ShellDied(ShellError):
    """The shell ended (``exit``, a signal). The branch's other processes keep running."""

    code = "shell_died"

    def __init__(self, message: str, *, output: bytes = b"") -> None:
        super().__init__(
            message,
            hint="start a fresh one (waypoint terminal new SESSION[:BRANCH] NAME) or restore a checkpoint",
        )
        self.output = output


class CommandTimedOut(ShellError):
    """The command ran out of time. It was interrupted and the shell is still there, unless the message says
    that the command cannot be interrupted."""

    exit_code = 124
    code = "timeout"

    def __init__(self, timeout_s: float, output: bytes = b"", *, resists: bool = False) -> None:
        tail = " and cannot be interrupted; it still runs" if resists else ""
        hint = (
            "close its terminal and open a new one (waypoint terminal close, then new), or restore a checkpoint"
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
            hint="allow more (--output-limit), or let the command write to a file",
        )
        self.output = output


class WaitTimedOut(ShellError):
    """The event that the caller waited for did not happen in time. Nothing was changed."""

    exit_code = 124
    code = "wait_timeout"
    hint = "wait again, with a longer --timeout"


class StoreError(WaypointError):
    """The state directory cannot store or return what was asked for. Running branches are not affected."""

    exit_code = 6
    code = "store"


class PoolFull(StoreError):
    """No space left in the pool. The branch keeps running and no checkpoint was made."""

    code = "pool_full"
    hint = "grow it (waypoint pool resize SIZE), or remove sessions (waypoint cleanup SESSION) or bases (waypoint base rm)"


class DiskLimitReached(StoreError):
    """The branch has used all the space that it may take in the pool. It keeps running; no file at the destination is
    half written."""

    code = "disk_limit"


class PoolNotReady(StoreError):
    """The state directory has not been set up."""

    exit_code = 7
    code = "pool_not_ready"


class CatalogueTooNew(StoreError):
    """The catalogue was written by a newer version and was not touched."""

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
