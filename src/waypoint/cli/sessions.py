"""Verbs on sessions: init, list, tree, destroy, cleanup."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from waypoint.cli.answer import Answer
from waypoint.cli.creation import create_session
from waypoint.cli.documents import Names, live_pid, place_of_work, session_document, socket_path
from waypoint.cli.settings import older_key_notes
from waypoint.cli.sharing import shared_document, sharing_notes
from waypoint.cli.target import parse_size, parse_target
from waypoint.errors import Busy, EngineError, UsageError
from waypoint.log import step_observers
from waypoint.session.background.network_repair import mend_networks
from waypoint.session.creation.wall_choice import PRIVILEGED_WARNING
from waypoint.session.drawing import age, megabytes, status
from waypoint.session.lifecycle.session_in_use import explain_session_in_use
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint

__all__ = ["cleanup", "destroy", "init", "list_", "tree"]

LAYERS_SHOWN = 16


def init(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = create_session(waypoint, options, size=parse_size(options.size) if options.size else None)
    directory = place_of_work(session)
    lines = ["Environment initialized!", f"Session ID: {session.id}"]
    if options.name:
        lines.append(f"Name: {options.name}")
    lines.append(f"Work in this directory: {directory}")
    if options.shell is not None:
        pid = session.main.record.init_pid
        lines.append(f"Shell PID: {pid} [socket: {socket_path(pid)}]")
    lines += ["", "Save the session ID for future operations!"]
    return Answer(
        text="\n".join(lines),
        quiet=f"{session.id},{directory}",
        document={
            "session_id": session.id,
            "name": session.record.name,
            "directory": directory,
            "base": os.fspath(session.record.base.path),
            "workspace": session.record.workspace,
            **shared_document(session),
            "network": str(session.record.settings.network.mode),
        },
        notes=[*older_key_notes(options), *sharing_notes(session)],
    )


def list_(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.session is None:
        return _list_sessions(waypoint.sessions())
    session = waypoint.session(options.session)
    mend_networks(waypoint.context, session.record)
    document = session_document(session)
    names = Names(session)
    lines = [f"PRIVILEGED: {PRIVILEGED_WARNING}"] if session.record.settings.walls.privileged else []
    lines += ["Checkpoints:"]
    for checkpoint in session.checkpoints():
        lines.append(
            f"  {checkpoint.name} parent={names.of(checkpoint.parent) or '-'} status=ready"
            f" layers={_layers(names.chain(checkpoint.id))} branch={checkpoint.branch}"
            f" memory={megabytes(checkpoint.memory_bytes)} kind={checkpoint.kind} {age(checkpoint.created_at)}"
        )
    lines += ["Live forks:"]  # so generation C calls branches, and scripts look for the line
    for branch in session.branches():
        record = branch.record
        pid = live_pid(branch)
        where = "pid=- socket=-" if pid is None else f"pid={pid} socket={socket_path(pid)}"
        lines.append(
            f"  {branch.name} checkpoint={names.of(record.head) or '-'} status={status(branch)}"
            f" {where} directory={branch.directory}"
        )
    quiet = "\n".join(checkpoint.name for checkpoint in session.checkpoints())
    return Answer(text="\n".join(lines), quiet=quiet, document=document)


def _layers(names: list[str]) -> str:
    """For people, so not without end; ``--json`` has them all."""
    return ",".join(names[:LAYERS_SHOWN] + (["…"] if len(names) > LAYERS_SHOWN else []))


def _list_sessions(sessions: list[Session]) -> Answer:
    lines = ["Available sessions:"] if sessions else ["No sessions found"]
    documents: list[dict[str, object]] = []
    for session in sessions:
        branches, checkpoints = session.branches(), session.checkpoints()
        name = f" {session.record.name}" if session.record.name else ""
        lines.append(
            f"  {session.id}{name} branches={len(branches)} checkpoints={len(checkpoints)}"
            f" {age(session.record.created_at)} {session.record.workspace}"
            f"{' suspended' if session.is_suspended else ''}{_privileged(session)}"
        )
        documents.append(
            {
                "session_id": session.id,
                "name": session.record.name,
                "workspace": session.record.workspace,
                "created_at": session.record.created_at,
                "walls": asdict(session.record.settings.walls),
                "branches": len(branches),
                "checkpoints": len(checkpoints),
                "suspended": session.is_suspended,
            }
        )
    quiet = "\n".join(session.id for session in sessions)
    return Answer(text="\n".join(lines), quiet=quiet, document={"sessions": documents})


def tree(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = waypoint.session(options.session)
    return Answer(text=session.tree(), document=session_document(session, with_files=True))


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
    preserve = options.settings["preserve_session_on_cleanup"]
    if preserve.value:
        return _preserved(session, options, f"{preserve.key.name} ({preserve.source})")
    try:
        with _told_step_by_step(is_wanted=options.force and not options.quiet and not options.json):
            session.cleanup(force=options.force)
    except (Busy, EngineError) as error:
        if not options.force:  # all that could be said of it then is asked for already
            error.hint = explain_session_in_use(waypoint.context, session.record)
        raise
    return Answer(
        text=f"Session '{options.session}' cleaned up successfully", document={"cleaned_up": session.id}
    )


def _preserved(session: Session, options: argparse.Namespace, setting: str) -> Answer:
    """End all that runs of a session and keep the rest, as those who set the older key want it."""
    session.suspend(drop=options.force)
    kept = f"kept on disk, as {setting} says; bring it back: waypoint resume {options.session}"
    return Answer(
        text=f"Session '{options.session}' cleaned up successfully",
        document={"cleaned_up": session.id, "kept": True},
        notes=[kept],
    )


_REMOVAL_STEPS = {
    "branch": "ending branches: processes, mounts, files",
    "ports": "closing ports",
    "checkpoint": "removing checkpoints",
    "directories": "removing directories",
}


@contextmanager
def _told_step_by_step(*, is_wanted: bool) -> Iterator[None]:
    """Say on standard error what a removal is at."""
    told: list[str] = []

    def tell(operation: str, step: str) -> None:
        if operation == "cleanup" and step in _REMOVAL_STEPS and told[-1:] != [step]:
            told.append(step)
            print(f"waypoint: {_REMOVAL_STEPS[step]}", file=sys.stderr, flush=True)

    if is_wanted:
        step_observers.append(tell)
    try:
        yield
    finally:
        if is_wanted:
            step_observers.remove(tell)


def _privileged(session: Session) -> str:
    return " PRIVILEGED" if session.record.settings.walls.privileged else ""
