"""The verbs suspend and resume."""

import argparse

from waypoint.cli.answer import Answer
from waypoint.cli.failure import report_error
from waypoint.errors import ResumeIncomplete
from waypoint.model import BranchRecord
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint

__all__ = ["resume", "suspend"]


def suspend(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = waypoint.session(options.session)
    live = [branch.name for branch in session.branches() if not branch.record.is_suspended]
    session.suspend(drop=options.drop)
    records = [branch.record for branch in session.branches() if branch.name in live]
    names = _checkpoint_names(session)
    if not live:
        text = f"Session '{options.session}' is suspended already"
    else:
        lines = [
            f"Session '{options.session}' suspended; checkpoints remain on disk — "
            f"bring it back: waypoint resume {options.session}"
        ]
        lines += [
            _lost_line(record, names) if options.drop else _kept_line(record, names) for record in records
        ]
        text = "\n".join(lines)
    return Answer(
        text=text,
        quiet="\n".join(names.get(record.head or "", "-") for record in records),
        document={
            "session_id": session.id,
            "dropped": options.drop,
            "branches": [
                {"id": record.name, "status": "suspended", "checkpoint": names.get(record.head or "")}
                for record in records
            ],
        },
    )


def _kept_line(record: BranchRecord, names: dict[str, str]) -> str:
    return f"  {record.name} checkpoint={names[record.head or '']}"


def _lost_line(record: BranchRecord, names: dict[str, str]) -> str:
    if record.head is None:
        return f"  {record.name} checkpoint=- lost: all of it, since it was never saved; it starts again from its base"
    name = names[record.head]
    return f"  {record.name} checkpoint={name} lost: what it did since {name!r}"


def resume(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    session = waypoint.session(options.session)
    exit_code, errors = 0, {}
    try:
        made = session.resume()
    except ResumeIncomplete as error:
        made = [session.branch(name) for name in error.made]
        exit_code, errors = error.exit_code, error.errors
        if not options.json:  # otherwise they are in the document
            exit_code = report_error(error, verb=options.verb.name, is_older=options.is_older)
    names = _checkpoint_names(session)
    lines = [f"Session '{options.session}' resumed"]
    if not made:
        lines = [f"Session '{options.session}' is not suspended"] if not errors else []
    for branch in made:
        record = branch.record
        lines.append(f"  {branch.name} checkpoint={names.get(record.head or '', '-')} pid={record.init_pid}")
    return Answer(
        text="\n".join(lines),
        quiet="\n".join(branch.name for branch in made),
        exit_code=exit_code,
        document={
            "session_id": session.id,
            "branches": [
                {
                    "id": branch.name,
                    "status": "running",
                    "checkpoint": names.get(branch.record.head or ""),
                    "pid": branch.record.init_pid,
                }
                for branch in made
            ],
            "errors": {name: str(reason) for name, reason in errors.items()},
        },
    )


def _checkpoint_names(session: Session) -> dict[str, str]:
    return {checkpoint.id: checkpoint.name for checkpoint in session.checkpoints()}
