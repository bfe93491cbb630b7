"""The verb info: the system, a session or a checkpoint as one JSON document."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from waypoint import __version__
from waypoint.cli.answer import Answer
from waypoint.cli.documents import checkpoint_document, session_document
from waypoint.cli.older_documents import registry_document, snapshot_breakdown, volatile_fork_document
from waypoint.cli.settings import settings_document
from waypoint.kernel.dependencies import describe_criu, find_buildah, find_overlay
from waypoint.session.setup import find_criu
from waypoint.session.status import SessionStatus, files_bytes
from waypoint.session.waypoint import Waypoint

__all__ = ["info"]


def info(state_dir: Path, options: argparse.Namespace) -> Answer:
    """Answer with a JSON document, with or without --json."""
    if options.session is None:
        document = _system(state_dir, options)
    else:
        with Waypoint(state_dir) as waypoint:
            session = waypoint.session(options.session).status()
            if options.name is None:
                document = _session(session)
            else:
                document = _checkpoint(waypoint, session, options.name)
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


def _session(session: SessionStatus) -> dict[str, object]:
    document = session_document(session)
    checkpoints = document.pop("checkpoints")
    del document["branches"], document["forks"]
    return {
        "type": "session",
        "session": {
            **registry_document(session),
            **document,
            "base": session.base_name,
            "workspace": session.record.workspace,
        },
        "forks": [volatile_fork_document(branch) for branch in session.branches],
        "checkpoints": checkpoints,
    }


def _checkpoint(waypoint: Waypoint, session: SessionStatus, name: str) -> dict[str, object]:
    record = waypoint.context.catalogue.checkpoint(session.id, name)
    checkpoint = next(one for one in session.checkpoints if one.record.id == record.id)
    made = waypoint.context.catalogue.maker_of_checkpoint(record)
    return {
        "type": "checkpoint",
        "session_id": session.id,
        "checkpoint_id": record.name,
        "metadata": {
            **checkpoint_document(session, checkpoint),
            # Older field names.
            "timestamp": record.created_at,
            "parent_list": session.ancestry(record.parent),
            "files_bytes": files_bytes(waypoint.context, record.id),
            "snapshot_breakdown": snapshot_breakdown(made),
        },
    }
