"""``waypoint shell``: create a session and attach to it."""

import argparse
import sys

from waypoint.cli.answer import Answer, print_notes
from waypoint.cli.creation import create_session
from waypoint.cli.settings import older_key_notes
from waypoint.cli.sharing import sharing_notes
from waypoint.cli.terminals import attach_to, require_attachable
from waypoint.names import MAIN
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint

__all__ = ["shell"]

_QUESTION = "Keep the session (k), save a checkpoint and keep it (s), or remove it (r)? [k] "


def shell(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    require_attachable(options.detach_key)
    session = create_session(waypoint, options, attended=True)
    if not options.quiet:
        print_notes([*older_key_notes(options), *sharing_notes(session.record.settings)])
    reference = options.name or session.id
    try:
        ended = attach_to(session.main, reference, MAIN, detach_key=options.detach_key, read_only=False)
    except BaseException:
        print(_kept(reference, "cut off"), file=sys.stderr)
        raise
    return Answer(
        text=_ask_what_to_keep(session, reference, ended),
        quiet=session.id,
        document={"session_id": session.id, "ended": ended},
    )


def _kept(reference: str, ended: str) -> str:
    new_terminal = f"waypoint terminal new {reference} {MAIN} && " if ended == "exited" else ""
    return f"Kept: {new_terminal}waypoint attach {reference}"


def _ask_what_to_keep(session: Session, reference: str, ended: str) -> str:
    """Ask what to keep, do it, and return what to print. An empty answer keeps everything."""
    kept = _kept(reference, ended)
    while True:
        print(_QUESTION, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip().lower()
        if answer in ("", "k"):
            return kept
        if answer == "s":
            return f"Checkpoint '{session.snapshot().name}' created successfully. {kept}"
        if answer == "r":
            session.cleanup(force=True)
            return f"Session '{session.id}' cleaned up successfully"
