"""Sessions, branches and checkpoints as JSON. :mod:`waypoint.cli.older_documents` adds the older field names."""

import os
from dataclasses import asdict

from waypoint.cli.older_documents import fork_document, older_checkpoint_fields
from waypoint.cli.sharing import shared_document
from waypoint.session.status import BranchStatus, CheckpointStatus, SessionStatus

__all__ = ["checkpoint_document", "session_document"]


def session_document(session: SessionStatus, *, with_ancestry: bool = True) -> dict[str, object]:
    """Without ``with_ancestry`` each checkpoint has its parent only: with all ancestors, a thousand checkpoints in a
    row would have half a million names."""
    settings = session.record.settings
    return {
        "session_id": session.id,
        "name": session.record.name,
        "user": settings.user,
        "walls": asdict(settings.walls),
        "limits": asdict(settings.limits),
        "work_directory": settings.work_dir,
        "checkpoints": [
            checkpoint_document(session, checkpoint, with_ancestry=with_ancestry)
            for checkpoint in session.checkpoints
        ],
        "branches": [_branch_document(branch) for branch in session.branches],
        "forks": [fork_document(session, branch) for branch in session.branches],
        **shared_document(settings),
    }


def checkpoint_document(
    session: SessionStatus, checkpoint: CheckpointStatus, *, with_ancestry: bool = True
) -> dict[str, object]:
    """A checkpoint as JSON, with ``files_bytes`` if they were counted."""
    record = checkpoint.record
    document: dict[str, object] = {
        "id": record.name,
        "parent": checkpoint.parent,
        "branch": record.branch,
        "created_at": record.created_at,
        "kind": record.kind,
        "memory_bytes": record.memory_bytes,
        **older_checkpoint_fields(session, checkpoint),
    }
    if with_ancestry:
        document["layer_ids"] = session.ancestry(record.id)
    if checkpoint.files_bytes is not None:
        document["files_bytes"] = checkpoint.files_bytes
    return document


def _branch_document(branch: BranchStatus) -> dict[str, object]:
    return {
        "id": branch.name,
        "status": branch.state,
        "checkpoint": branch.head,
        "pid": branch.pid,
        "directory": os.fspath(branch.directory),
        "created_at": branch.record.created_at,
        "usage": branch.usage,
    }
