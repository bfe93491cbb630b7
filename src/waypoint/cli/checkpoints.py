"""Verbs on checkpoints: snapshot, restore, fork."""

import argparse
import os

from waypoint.cli.answer import Answer
from waypoint.cli.failure import print_error
from waypoint.cli.target import find_branch
from waypoint.errors import ForkIncomplete, UsageError
from waypoint.session.session import Branch
from waypoint.session.waypoint import Waypoint

__all__ = ["fork", "restore", "snapshot"]


def snapshot(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    checkpoint = branch.snapshot(options.name, wait=options.wait)
    return Answer(
        text=f"Checkpoint '{checkpoint.name}' created successfully",
        quiet=checkpoint.name,
        document={
            "checkpoint": checkpoint.name,
            "session_id": checkpoint.session_id,
            "branch": checkpoint.branch,
            "memory_bytes": checkpoint.memory_bytes,
        },
    )


def restore(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    checkpoint = branch.restore(options.name, wait=options.wait)
    pid = branch.record.init_pid
    return Answer(
        text=f"Checkpoint '{checkpoint.name}' restored, new PID: {pid}",
        quiet=checkpoint.name,
        document={"checkpoint": checkpoint.name, "branch": branch.name, "pid": pid},
    )


def fork(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.id is not None and options.n not in (None, 1):
        raise UsageError("--id names one branch, so it does not go with --n", hint="leave out --id")
    session = waypoint.session(options.session)
    exit_code, errors = 0, {}
    try:
        made = session.fork(options.source, n=options.n, ids=None if options.id is None else [options.id])
    except ForkIncomplete as error:
        made = [session.branch(name) for name in error.made]
        exit_code, errors = error.exit_code, error.errors
        if not options.json:
            print_error(error, as_json=False)
    return Answer(
        text="\n".join(_describe(branch) for branch in made),
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


def _describe(branch: Branch) -> str:
    pid = branch.record.init_pid
    last = branch.session.context.catalogue.last_operation(branch.session.id, "fork", branch.name)
    return (
        f"{branch.name} pid={pid} socket=/proc/{pid}/root/.waypoint/sock duration={last.total_ms or 0:.1f}ms"
    )
