"""Verbs on checkpoints: snapshot, park, restore, fork, promote."""

import argparse
import os

from waypoint.cli.answer import Answer
from waypoint.cli.failure import report_error
from waypoint.cli.older_documents import socket_path
from waypoint.cli.phases import FORK_NAMES, named_phases, phases_text
from waypoint.cli.target import find_branch, parse_target
from waypoint.errors import ForkIncomplete, UsageError
from waypoint.model import CheckpointRecord, OperationKind
from waypoint.names import MAIN
from waypoint.session.session import Branch
from waypoint.session.waypoint import Waypoint

__all__ = ["fork", "park", "promote", "restore", "snapshot"]


def snapshot(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.park:
        return park(waypoint, options)
    branch = find_branch(waypoint, options.target)
    pid = options.pid
    if pid is not None and pid == branch.pid:
        pid = None  # the PID that init --shell, build and restore print: the branch itself
    checkpoint = branch.snapshot(options.name, files_only=options.files_only, pid=pid, wait=options.wait)
    return Answer(
        text=f"Checkpoint '{checkpoint.name}' created successfully",
        quiet=checkpoint.name,
        document=_saved_document(checkpoint),
    )


def park(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    checkpoint = branch.park(options.name, wait=options.wait)
    return Answer(
        text=f"Branch '{branch.name}' parked as checkpoint '{checkpoint.name}'",
        quiet=checkpoint.name,
        document={**_saved_document(checkpoint), "parked": branch.name},
    )


def _saved_document(checkpoint: CheckpointRecord) -> dict[str, object]:
    return {
        "checkpoint": checkpoint.name,
        "session_id": checkpoint.session_id,
        "branch": checkpoint.branch,
        "kind": checkpoint.kind,
        "memory_bytes": checkpoint.memory_bytes,
    }


def restore(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    checkpoint = branch.restore(options.name, wait=options.wait)
    pid = branch.record.init_pid
    if branch.name == MAIN:
        pid = branch.session.program_pid(checkpoint) or pid
    return Answer(
        text=f"Checkpoint '{checkpoint.name}' restored, new PID: {pid}",
        quiet=checkpoint.name,
        document={
            "checkpoint": checkpoint.name,
            "branch": branch.name,
            "kind": checkpoint.kind,
            "pid": pid,
        },
    )


def fork(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.id is not None and options.n not in (None, 1):
        raise UsageError("--id names one branch, so it cannot be combined with --n", hint="leave out --id")
    session = waypoint.session(options.session)
    exit_code, errors = 0, {}
    try:
        made = session.fork(options.source, n=options.n, ids=None if options.id is None else [options.id])
    except ForkIncomplete as error:
        made = [session.branch(name) for name in error.made]
        exit_code, errors = error.exit_code, error.errors
        if not options.json:  # otherwise they are in the document
            exit_code = report_error(error, verb=options.verb.name, is_older=options.is_older)
    return Answer(
        text="\n".join(
            _describe(branch, with_phases=bool(options.settings["phase_stats"].value)) for branch in made
        ),
        quiet="\n".join(branch.name for branch in made),
        exit_code=exit_code,
        document={
            "session_id": session.id,
            "branches": [
                {
                    "id": branch.name,
                    "status": "running",
                    "pid": branch.record.init_pid,
                    "directory": os.fspath(branch.directory),
                }
                for branch in made
            ],
            "errors": {name: str(reason) for name, reason in errors.items()},
        },
    )


def _describe(branch: Branch, *, with_phases: bool) -> str:
    pid = branch.record.init_pid
    last = branch.session.context.catalogue.last_operation(branch.session.id, OperationKind.FORK, branch.name)
    phases = named_phases(last, FORK_NAMES)
    duration = f"{phases.pop('total_ms'):.1f}ms"
    line = f"{branch.name} pid={pid} socket={socket_path(pid)} duration={duration}"
    return f"{line} {phases_text(phases)}" if with_phases else line


def promote(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    target = parse_target(options.target)
    if target.branch is None:
        raise UsageError(
            "no branch is named: write SESSION:BRANCH", hint="waypoint list SESSION shows the branches"
        )
    branch = waypoint.session(target.session).branch(target.branch).promote(options.over, wait=options.wait)
    return Answer(
        text=f"Branch '{target.branch}' is now '{branch.name}'",
        quiet=branch.name,
        document={"branch": branch.name, "was": target.branch, "pid": branch.record.init_pid},
    )
