"""Verbs that show what there is: list, tree."""

import argparse
from dataclasses import asdict

from waypoint.cli.answer import Answer
from waypoint.cli.documents import session_document
from waypoint.cli.older_documents import socket_path
from waypoint.cli.text_tree import draw_tree
from waypoint.cli.units import age, megabytes
from waypoint.session.creation.wall_choice import PRIVILEGED_WARNING
from waypoint.session.network.network_repair import repair_networks
from waypoint.session.status import SessionStatus
from waypoint.session.waypoint import Waypoint

__all__ = ["list_", "tree"]

LAYERS_SHOWN = 16


def list_(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.session is None:
        return _list_sessions(waypoint.statuses())
    session = waypoint.session(options.session)
    repair_networks(waypoint.context, session.record)
    status = session.status()
    lines = [f"PRIVILEGED: {PRIVILEGED_WARNING}"] if session.record.settings.walls.privileged else []
    lines += ["Checkpoints:"]
    for checkpoint in status.checkpoints:
        record = checkpoint.record
        lines.append(
            f"  {record.name} parent={checkpoint.parent or '-'} status=ready"
            f" layers={_layers(status.ancestry(record.id))} branch={record.branch}"
            f" memory={megabytes(record.memory_bytes)} kind={record.kind} {age(record.created_at)}"
        )
    lines += ["Live forks:"]  # an older word for branches; scripts look for this line
    for branch in status.branches:
        where = (
            "pid=- socket=-" if branch.pid is None else f"pid={branch.pid} socket={socket_path(branch.pid)}"
        )
        lines.append(
            f"  {branch.name} checkpoint={branch.head or '-'} status={branch.state}"
            f" {where} directory={branch.directory}"
        )
    quiet = "\n".join(checkpoint.name for checkpoint in status.checkpoints)
    return Answer(text="\n".join(lines), quiet=quiet, document=session_document(status))


def _layers(names: list[str]) -> str:
    """The first few, because this is for people; ``--json`` has them all."""
    return ",".join(names[:LAYERS_SHOWN] + (["…"] if len(names) > LAYERS_SHOWN else []))


def _list_sessions(sessions: list[SessionStatus]) -> Answer:
    lines = ["Available sessions:"] if sessions else ["No sessions found"]
    documents: list[dict[str, object]] = []
    for session in sessions:
        record = session.record
        lines.append(
            f"  {session.id}{f' {record.name}' if record.name else ''} branches={len(session.branches)}"
            f" checkpoints={len(session.checkpoints)} {age(record.created_at)} {record.workspace}"
            f"{' suspended' if session.is_suspended else ''}"
            f"{' PRIVILEGED' if record.settings.walls.privileged else ''}"
        )
        documents.append(
            {
                "session_id": session.id,
                "name": record.name,
                "workspace": record.workspace,
                "created_at": record.created_at,
                "walls": asdict(record.settings.walls),
                "branches": len(session.branches),
                "checkpoints": len(session.checkpoints),
                "suspended": session.is_suspended,
            }
        )
    quiet = "\n".join(session.id for session in sessions)
    return Answer(text="\n".join(lines), quiet=quiet, document={"sessions": documents})


def tree(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    status = waypoint.session(options.session).status(with_files=True)
    return Answer(text=draw_tree(status), document=session_document(status, with_ancestry=False))
