"""Verbs on ports: expose, unexpose, ports."""

import argparse

from waypoint.cli.answer import Answer
from waypoint.cli.target import find_branch
from waypoint.session.network.port_forwards import LOOPBACK, ExposedPort
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint

__all__ = ["expose", "ports", "unexpose"]


def expose(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    exposed = branch.expose(options.port, options.host_port)
    address = f"{LOOPBACK}:{exposed.host_port}"
    note = "" if exposed.is_listening else " (nothing listens there yet)"
    return Answer(
        text=f"{address} forwards to port {exposed.port} of branch '{exposed.branch}'{note}",
        quiet=address,
        document=_document(branch.session, exposed),
    )


def unexpose(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    branch = find_branch(waypoint, options.target)
    branch.unexpose(options.port)
    return Answer(
        text=f"Port {options.port} of branch '{branch.name}' is no longer exposed",
        document={"session_id": branch.session.id, "branch": branch.name, "port": options.port},
    )


def ports(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    sessions = waypoint.sessions() if options.session is None else [waypoint.session(options.session)]
    found = [(session, exposed) for session in sessions for exposed in session.ports()]
    lines = [
        f"  {LOOPBACK}:{exposed.host_port} -> {session.record.name or session.id}:{exposed.branch} port {exposed.port}"
        f" {'listening' if exposed.is_listening else 'nothing listens'}"
        for session, exposed in found
    ]
    return Answer(
        text="\n".join(["Exposed ports:", *lines] if lines else ["No exposed ports"]),
        quiet="\n".join(f"{LOOPBACK}:{exposed.host_port}" for _, exposed in found),
        document={"ports": [_document(session, exposed) for session, exposed in found]},
    )


def _document(session: Session, exposed: ExposedPort) -> dict[str, object]:
    return {
        "session_id": session.id,
        "branch": exposed.branch,
        "port": exposed.port,
        "host_port": exposed.host_port,
        "listening": exposed.is_listening,
    }
