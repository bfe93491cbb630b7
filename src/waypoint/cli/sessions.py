"""Verbs on sessions: init, destroy, cleanup."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from waypoint.cli.answer import Answer
from waypoint.cli.creation import create_session
from waypoint.cli.older_documents import socket_path, work_path
from waypoint.cli.settings import older_key_notes
from waypoint.cli.sharing import shared_document, sharing_notes
from waypoint.cli.target import parse_size, parse_target
from waypoint.errors import Busy, EngineError, UsageError
from waypoint.log import step_observers
from waypoint.session.lifecycle.session_in_use import explain_session_in_use
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint

__all__ = ["cleanup", "destroy", "init"]


def init(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = create_session(waypoint, options, size=parse_size(options.size) if options.size else None)
    directory = work_path(session.status())
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
            **shared_document(session.record.settings),
            "network": str(session.record.settings.network.mode),
        },
        notes=[*older_key_notes(options), *sharing_notes(session.record.settings)],
    )


def destroy(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    target = parse_target(options.target)
    if target.branch is None:
        raise UsageError(
            "no branch is named: write SESSION:BRANCH", hint="waypoint cleanup SESSION removes a session"
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
        with _removal_progress(is_wanted=options.force and not options.quiet and not options.json):
            session.cleanup(force=options.force)
    except (Busy, EngineError) as error:
        if not options.force:  # with --force, the hint would suggest what was asked for already
            error.hint = explain_session_in_use(waypoint.context, session.record)
        raise
    return Answer(
        text=f"Session '{options.session}' cleaned up successfully", document={"cleaned_up": session.id}
    )


def _preserved(session: Session, options: argparse.Namespace, setting: str) -> Answer:
    """Suspend the session instead of removing it, as the older key ``preserve_session_on_cleanup`` asks for."""
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
def _removal_progress(*, is_wanted: bool) -> Iterator[None]:
    """Print each step of a removal on standard error as it starts."""
    printed: list[str] = []

    def print_step(operation: str, step: str) -> None:
        if operation == "cleanup" and step in _REMOVAL_STEPS and printed[-1:] != [step]:
            printed.append(step)
            print(f"waypoint: {_REMOVAL_STEPS[step]}", file=sys.stderr, flush=True)

    if is_wanted:
        step_observers.append(print_step)
    try:
        yield
    finally:
        if is_wanted:
            step_observers.remove(print_step)
