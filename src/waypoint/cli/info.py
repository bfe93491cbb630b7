"""The verb info: the system, a session or a checkpoint as one JSON document."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from waypoint import __version__
from waypoint.cli.answer import Answer
from waypoint.cli.documents import (
    Names,
    checkpoint_document,
    registry_document,
    session_document,
    snapshot_breakdown,
    start_time,
)
from waypoint.cli.settings import settings_document
from waypoint.kernel.dependencies import describe_criu, find_buildah, find_overlay
from waypoint.session.drawing import status
from waypoint.session.session import Branch, Session
from waypoint.session.setup import find_criu
from waypoint.session.waypoint import Waypoint

__all__ = ["info"]

_UNAVAILABLE = {
    "dead": "its processes have ended; restore or fork a checkpoint",
    "suspended": "the session is suspended; waypoint resume brings it back",
}


def info(state_dir: Path, options: argparse.Namespace) -> Answer:
    """Always JSON, with or without --json: that is what the verb is for."""
    if options.session is None:
        document = _system(state_dir, options)
    else:
        with Waypoint(state_dir) as waypoint:
            session = waypoint.session(options.session)
            document = _session(session) if options.name is None else _checkpoint(session, options.name)
    text = json.dumps(document, indent=2)
    return Answer(text=text, quiet=text, document=document)


def _system(state_dir: Path, options: argparse.Namespace) -> dict[str, object]:
    return {
        "type": "system",
        "version": __version__,
        "config": settings_document(options),
        "dependencies": {
            "criu": asdict(describe_criu(find_criu(state_dir))),
            "buildah": asdict(find_buildah()),
            "overlayfs": asdict(find_overlay()),
        },
        "state_dir": os.fspath(state_dir),
        "is_set_up": (state_dir / "host.json").exists(),
    }


def _session(session: Session) -> dict[str, object]:
    names = Names(session)
    whole = session_document(session)
    checkpoints = whole.pop("checkpoints")
    del whole["branches"], whole["forks"]
    return {
        "type": "session",
        "session": {
            **registry_document(session),
            **whole,
            "base": session.base_name,
            "workspace": session.record.workspace,
        },
        "forks": [_fork(branch, names) for branch in session.branches()],
        "checkpoints": checkpoints,
    }


def _fork(branch: Branch, names: Names) -> dict[str, object]:
    """``volatile``: pid and root are those of now; a restore of the branch gives it others."""
    record, state = branch.record, status(branch)
    is_available = state == "running"
    return {
        "id": branch.name,
        "base_checkpoint_id": names.of(record.head),
        "status": state,
        "available": is_available,
        "host_pid": record.init_pid if is_available else None,
        "host_pid_start_time": start_time(record.init_pid) if is_available else None,
        "host_root": f"/proc/{record.init_pid}/root" if is_available else None,
        "volatile": True,
        "unavailable_reason": None if is_available else _UNAVAILABLE[state],
        "directory": os.fspath(branch.directory),
        "usage": branch.usage(),
    }


def _checkpoint(session: Session, name: str) -> dict[str, object]:
    checkpoint = session.context.catalogue.checkpoint(session.id, name)
    names = Names(session)
    return {
        "type": "checkpoint",
        "session_id": session.id,
        "checkpoint_id": checkpoint.name,
        "metadata": {
            **checkpoint_document(session, checkpoint, names),
            # As generation A calls it.
            "timestamp": checkpoint.created_at,
            "parent_list": names.chain(checkpoint.parent),
            "files_bytes": session.files_bytes(checkpoint),
            "snapshot_breakdown": snapshot_breakdown(session, checkpoint),
        },
    }
