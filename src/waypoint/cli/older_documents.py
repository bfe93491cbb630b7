"""Sessions, branches and checkpoints as JSON, under the names that the originals give them.

Generation C calls a branch a fork. Its checkpoints are stacks of layers; here each is complete, so ``layer_ids`` are
the checkpoint and its ancestors, newest first.
"""

import os

from waypoint.cli.phases import FORK_FIELDS, SNAPSHOT_NAMES, named_phases
from waypoint.kernel.processes.process_tree import read_process
from waypoint.model import OperationRecord
from waypoint.session.status import BranchState, BranchStatus, CheckpointStatus, SessionStatus

__all__ = [
    "fork_document",
    "older_checkpoint_fields",
    "registry_document",
    "snapshot_breakdown",
    "socket_path",
    "volatile_fork_document",
    "work_path",
]

SOCKET = "/.waypoint/sock"
"""Where init listens, as seen from the branch itself."""

_UNAVAILABLE = {
    BranchState.DEAD: "its processes have ended; restore or fork a checkpoint",
    BranchState.SUSPENDED: "the session is suspended; waypoint resume brings it back",
}


def older_checkpoint_fields(session: SessionStatus, checkpoint: CheckpointStatus) -> dict[str, object]:
    """The fields of a checkpoint that generation C has in addition to ours, except ``layer_ids``."""
    return {
        "parent_id": checkpoint.parent,
        "pid": -1 if checkpoint.saved_pid is None else checkpoint.saved_pid,
        "original_dir": os.fspath(session.record.base.path),
        "session_id": session.id,
        "created_from_fork_id": checkpoint.record.branch,
        "status": "ready",
    }


def snapshot_breakdown(made: OperationRecord | None) -> dict[str, object]:
    """How long each step took when the checkpoint was made."""
    if made is None:
        return {}
    return {
        **named_phases(made, SNAPSHOT_NAMES),
        "criu_dump": {"frozen_ms": made.phases_ms.get("pause")},
    }


def fork_document(session: SessionStatus, branch: BranchStatus) -> dict[str, object]:
    """The fields of a fork that generation C has, as far as they exist here."""
    pid, made = branch.pid, branch.made_by
    return {
        "id": branch.name,
        "session_id": session.id,
        "base_checkpoint_id": branch.head,
        "layer_ids": session.ancestry(branch.record.head),
        "original_dir": os.fspath(session.record.base.path),
        "root_dir": os.fspath(branch.directory),
        "mount_point": os.fspath(branch.mount),
        "upper_dir": os.fspath(branch.layer / "upper"),
        "work_dir": os.fspath(branch.layer / "work"),
        "socket_path": None if pid is None else socket_path(pid),
        "canonical_socket": SOCKET,
        "pid": pid,
        "start_time": None if pid is None else _start_time(pid),
        "created_at": branch.record.created_at,
        "restore_duration": 0 if made is None else int((made.total_ms or 0) * 1_000_000),
        "restore_breakdown": {} if made is None else named_phases(made, FORK_FIELDS),
        "status": branch.state,
    }


def volatile_fork_document(branch: BranchStatus) -> dict[str, object]:
    """A fork as ``info`` shows it. ``volatile``: pid and root are the current ones; a restore gives it others."""
    pid = branch.pid
    return {
        "id": branch.name,
        "base_checkpoint_id": branch.head,
        "status": branch.state,
        "available": pid is not None,
        "host_pid": pid,
        "host_pid_start_time": None if pid is None else _start_time(pid),
        "host_root": None if pid is None else f"/proc/{pid}/root",
        "volatile": True,
        "unavailable_reason": _UNAVAILABLE.get(branch.state),
        "directory": os.fspath(branch.directory),
        "usage": branch.usage,
    }


def registry_document(session: SessionStatus) -> dict[str, object]:
    """A session as in the registry of the originals."""
    main = session.main
    pid = None if main is None else main.pid
    return {
        "session_id": session.id,
        "base_dir": os.fspath(session.directory),
        "original_dir": os.fspath(session.record.base.path),
        "work_overlay": work_path(session),
        "created_at": session.record.created_at,
        "shell_pid": pid,
        "shell_start_time": None if pid is None else _start_time(pid),
        "shell_socket": None if pid is None else socket_path(pid),
        "current_parent": None if main is None else main.head,
    }


def work_path(session: SessionStatus) -> str:
    """Where people work on its live files: the work directory if it has one, else the root of ``main``."""
    main = session.main
    return session.record.settings.work_dir or os.fspath(
        session.directory if main is None else main.directory
    )


def socket_path(pid: int) -> str:
    """Where init listens, as seen from the host."""
    return f"/proc/{pid}/root{SOCKET}"


def _start_time(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; with the pid this identifies it."""
    process = read_process(pid)
    return None if process is None else process.started
