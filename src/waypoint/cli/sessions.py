"""Verbs on sessions: init, list, tree, destroy, cleanup."""

import argparse
import os

from waypoint.cli.answer import Answer
from waypoint.cli.commands import parse_env
from waypoint.cli.target import parse_size, parse_target
from waypoint.errors import UsageError
from waypoint.session.drawing import age, megabytes, status
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint

__all__ = ["cleanup", "destroy", "init", "list_", "tree"]


def init(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = waypoint.create(
        options.directory or (os.getcwd() if options.base in (None, "host") else None),
        base=options.base,
        name=options.name,
        size=parse_size(options.size) if options.size else None,
        env=parse_env(options.env),
        shell=options.shell or None,
        allow_self=options.allow_self,
    )
    directory = os.fspath(session.directory)
    lines = ["Environment initialized!", f"Session ID: {session.id}"]
    if options.name:
        lines.append(f"Name: {options.name}")
    lines += [f"Work in this directory: {directory}", "", "Save the session ID for future operations!"]
    return Answer(
        text="\n".join(lines),
        quiet=f"{session.id},{directory}",
        document={
            "session_id": session.id,
            "name": session.record.name,
            "directory": directory,
            "base": os.fspath(session.record.base.path),
            "workspace": session.record.workspace,
        },
    )


def list_(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.session is None:
        return _list_sessions(waypoint.sessions())
    session = waypoint.session(options.session)
    document = _session_document(session)
    names = _checkpoint_names(session)
    lines = ["Checkpoints:"]
    for checkpoint in session.checkpoints():
        parent = names.get(checkpoint.parent or "", "-")
        lines.append(
            f"  {checkpoint.name} parent={parent} branch={checkpoint.branch}"
            f" memory={megabytes(checkpoint.memory_bytes)} {age(checkpoint.created_at)}"
        )
    lines += ["Live branches:"]
    for branch in session.branches():
        record = branch.record
        lines.append(
            f"  {branch.name} checkpoint={names.get(record.head or '', '-')} status={status(branch)}"
            f" pid={record.init_pid} directory={branch.directory}"
        )
    quiet = "\n".join(checkpoint.name for checkpoint in session.checkpoints())
    return Answer(text="\n".join(lines), quiet=quiet, document=document)


def _list_sessions(sessions: list[Session]) -> Answer:
    lines = ["Available sessions:"] if sessions else ["No sessions found"]
    documents: list[dict[str, object]] = []
    for session in sessions:
        branches, checkpoints = session.branches(), session.checkpoints()
        name = f" {session.record.name}" if session.record.name else ""
        lines.append(
            f"  {session.id}{name} branches={len(branches)} checkpoints={len(checkpoints)}"
            f" {age(session.record.created_at)} {session.record.workspace}"
        )
        documents.append(
            {
                "session_id": session.id,
                "name": session.record.name,
                "workspace": session.record.workspace,
                "created_at": session.record.created_at,
                "branches": len(branches),
                "checkpoints": len(checkpoints),
            }
        )
    quiet = "\n".join(session.id for session in sessions)
    return Answer(text="\n".join(lines), quiet=quiet, document={"sessions": documents})


def tree(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = waypoint.session(options.session)
    return Answer(text=session.tree(), document=_session_document(session, with_files=True))


def destroy(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    target = parse_target(options.target)
    if target.branch is None:
        raise UsageError(
            "which branch? write SESSION:BRANCH", hint="waypoint cleanup SESSION removes a session"
        )
    waypoint.session(target.session).branch(target.branch).destroy(wait=options.wait)
    return Answer(
        text=f"Branch '{target.branch}' destroyed successfully", document={"destroyed": target.branch}
    )


def cleanup(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = waypoint.session(options.session)
    session.cleanup(force=options.force)
    return Answer(
        text=f"Session '{options.session}' cleaned up successfully", document={"cleaned_up": session.id}
    )


def _session_document(session: Session, *, with_files: bool = False) -> dict[str, object]:
    names = _checkpoint_names(session)
    checkpoints = []
    for checkpoint in session.checkpoints():
        entry: dict[str, object] = {
            "id": checkpoint.name,
            "parent": names.get(checkpoint.parent or ""),
            "branch": checkpoint.branch,
            "created_at": checkpoint.created_at,
            "memory_bytes": checkpoint.memory_bytes,
        }
        if with_files:
            entry["files_bytes"] = session.files_bytes(checkpoint)
        checkpoints.append(entry)
    branches = [
        {
            "id": branch.name,
            "status": status(branch),
            "checkpoint": names.get(branch.record.head or ""),
            "pid": branch.record.init_pid,
            "directory": os.fspath(branch.directory),
            "created_at": branch.record.created_at,
        }
        for branch in session.branches()
    ]
    return {
        "session_id": session.id,
        "name": session.record.name,
        "checkpoints": checkpoints,
        "branches": branches,
    }


def _checkpoint_names(session: Session) -> dict[str, str]:
    return {checkpoint.id: checkpoint.name for checkpoint in session.checkpoints()}
