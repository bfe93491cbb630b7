"""Sessions, branches and checkpoints as JSON: our fields, and those of generation C under its names.

Generation C calls a branch a fork. It stacks the layers of checkpoints; ours are whole, so ``layer_ids`` are the
checkpoints that one came from, itself first.
"""

import os
from dataclasses import asdict

from waypoint.cli.phases import FORK_FIELDS, SNAPSHOT_NAMES, named_phases
from waypoint.cli.sharing import shared_document
from waypoint.kernel.processes.process_tree import read_process
from waypoint.model import CheckpointKind, CheckpointRecord
from waypoint.session.drawing import status
from waypoint.session.session import Branch, Session

__all__ = [
    "Names",
    "checkpoint_document",
    "fork_document",
    "live_pid",
    "place_of_work",
    "registry_document",
    "session_document",
    "snapshot_breakdown",
    "socket_path",
    "start_time",
]

SOCKET = "/.waypoint/sock"
"""Where init listens, as seen from the branch itself."""


class Names:
    """Names of the checkpoints of a session by their ids, and which came from which."""

    def __init__(self, session: Session) -> None:
        self._records = {checkpoint.id: checkpoint for checkpoint in session.checkpoints()}

    def of(self, checkpoint_id: str | None) -> str | None:
        record = self._records.get(checkpoint_id or "")
        return None if record is None else record.name

    def chain(self, checkpoint_id: str | None) -> list[str]:
        """The checkpoint and those it came from, newest first."""
        names: list[str] = []
        while checkpoint_id in self._records:
            record = self._records[checkpoint_id]
            names.append(record.name)
            checkpoint_id = record.parent
        return names


def session_document(session: Session, *, with_files: bool = False) -> dict[str, object]:
    names = Names(session)
    checkpoints = []
    for checkpoint in session.checkpoints():
        entry = checkpoint_document(session, checkpoint, names)
        if with_files:
            entry["files_bytes"] = session.files_bytes(checkpoint)
            # A tree tells that by its parents; of a thousand in a row it would be half a million.
            del entry["layer_ids"]
        checkpoints.append(entry)
    branches = [
        {
            "id": branch.name,
            "status": status(branch),
            "checkpoint": names.of(branch.record.head),
            "pid": live_pid(branch),
            "directory": os.fspath(branch.directory),
            "created_at": branch.record.created_at,
            "usage": branch.usage(),
        }
        for branch in session.branches()
    ]
    return {
        "session_id": session.id,
        "name": session.record.name,
        "user": session.record.settings.user,
        "walls": asdict(session.record.settings.walls),
        "limits": asdict(session.record.settings.limits),
        "work_directory": session.record.settings.work_dir,
        "checkpoints": checkpoints,
        "branches": branches,
        "forks": [fork_document(branch, names) for branch in session.branches()],
        **shared_document(session),
    }


def checkpoint_document(session: Session, checkpoint: CheckpointRecord, names: Names) -> dict[str, object]:
    return {
        "id": checkpoint.name,
        "parent": names.of(checkpoint.parent),
        "branch": checkpoint.branch,
        "created_at": checkpoint.created_at,
        "kind": checkpoint.kind,
        "memory_bytes": checkpoint.memory_bytes,
        # As generation C calls it.
        "parent_id": names.of(checkpoint.parent),
        "layer_ids": names.chain(checkpoint.id),
        "pid": _saved_pid(session, checkpoint),
        "original_dir": os.fspath(session.record.base.path),
        "session_id": session.id,
        "created_from_fork_id": checkpoint.branch,
        "status": "ready",
    }


def _saved_pid(session: Session, checkpoint: CheckpointRecord) -> int:
    """The process that it brings back: a program of the host, or process 1 of the branch; -1 if none."""
    if checkpoint.kind is CheckpointKind.FILES:
        return -1
    return session.program_pid(checkpoint) or 1


def snapshot_breakdown(session: Session, checkpoint: CheckpointRecord) -> dict[str, object]:
    """How long the parts of its making took."""
    made = session.context.catalogue.maker_of_checkpoint(checkpoint)
    if made is None:
        return {}
    return {
        **named_phases(made, SNAPSHOT_NAMES),
        "criu_dump": {"frozen_ms": made.phases_ms.get("pause")},
    }


def fork_document(branch: Branch, names: Names) -> dict[str, object]:
    """What generation C keeps of a fork, as far as there is such a thing here."""
    record, context, session = branch.record, branch.session.context, branch.session
    layer, pid = context.layout.layer(record.incarnation), live_pid(branch)
    made = context.catalogue.maker_of_branch(session.id, record.incarnation)
    return {
        "id": branch.name,
        "session_id": session.id,
        "base_checkpoint_id": names.of(record.head),
        "layer_ids": names.chain(record.head),
        "original_dir": os.fspath(session.record.base.path),
        "root_dir": os.fspath(branch.directory),
        "mount_point": os.fspath(context.layout.mount(record.incarnation)),
        "upper_dir": os.fspath(layer / "upper"),
        "work_dir": os.fspath(layer / "work"),
        "socket_path": None if pid is None else socket_path(pid),
        "canonical_socket": SOCKET,
        "pid": pid,
        "start_time": None if pid is None else start_time(pid),
        "created_at": record.created_at,
        "restore_duration": 0 if made is None else int((made.total_ms or 0) * 1_000_000),
        "restore_breakdown": {} if made is None else named_phases(made, FORK_FIELDS),
        "status": status(branch),
    }


def registry_document(session: Session) -> dict[str, object]:
    """The session as the registry of the originals has it."""
    main = next((branch for branch in session.branches() if branch.name == session.main.name), None)
    pid = None if main is None else live_pid(main)
    return {
        "session_id": session.id,
        "base_dir": os.fspath(session.context.layout.session(session.id)),
        "original_dir": os.fspath(session.record.base.path),
        "work_overlay": place_of_work(session),
        "created_at": session.record.created_at,
        "shell_pid": pid,
        "shell_start_time": None if pid is None else start_time(pid),
        "shell_socket": None if pid is None else socket_path(pid),
        "current_parent": None if main is None else Names(session).of(main.record.head),
    }


def place_of_work(session: Session) -> str:
    """Where people work on its live files: the work directory if it has one, else its whole root."""
    return os.fspath(session.work_directory or session.directory)


def live_pid(branch: Branch) -> int | None:
    """The process 1 of a branch, as the host numbers it; None if it is gone, and the number may be somebody else's."""
    return branch.record.init_pid if branch.is_running() else None


def start_time(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot: with its pid, who it is."""
    process = read_process(pid)
    return None if process is None else process.started


def socket_path(pid: int) -> str:
    """Where init listens, as seen from the host."""
    return f"/proc/{pid}/root{SOCKET}"
