"""Ports of a branch that the host's loopback leads to: ``waypoint expose`` and ``waypoint ports``.

What is to lead where is in the catalogue. One background process for each session that has any such port does it
(:mod:`waypoint.session.background.forwarder`); killed, it is started again by the next operation. It is told of changes by
its *bell*, a socket: whoever rings has it look at the catalogue, and learns what it could not do.
"""

import logging
import os
import socket
import sys
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import AlreadyExists, Broken, Busy, NotFound, Suspended, UsageError
from waypoint.kernel.network.ports_in_use import listening_ports
from waypoint.kernel.processes.programs import detach
from waypoint.model import NetworkMode, PortRecord, SessionRecord
from waypoint.session.context import Context
from waypoint.session.network.network_repair import mend_networks
from waypoint.store.lock import forwarder_lock, locked

__all__ = [
    "LOOPBACK",
    "ExposedPort",
    "bell_path",
    "ensure_forwarder",
    "expose_port",
    "exposed_ports",
    "lead_again",
    "settle_forwarder",
    "unexpose_port",
]

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
END_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
TRIES = 3  # the forwarder may be just ending because the last port was taken from it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedPort:
    """``host_port`` of the host's loopback leads to ``port`` of a branch, where something listens now or not."""

    branch: str
    port: int
    host_port: int
    is_listening: bool


def expose_port(
    context: Context, session: SessionRecord, branch: str, port: int, host_port: int | None = None
) -> PortRecord:
    """Let a port of the host's loopback lead to the branch's ``port``: the same number if it is free."""
    for number in (port,) if host_port is None else (port, host_port):
        if not 0 < number <= PORT_MAX:
            raise UsageError(f"{number} is not a port", hint=f"a number from 1 to {PORT_MAX}")
    if session.settings.network.mode is NetworkMode.HOST:
        raise UsageError(
            f"session {session.id} shares the host's network",
            hint=f"its port {port} is the host's: {LOOPBACK}:{port}",
        )
    if context.catalogue.branch(session.id, branch).is_suspended:
        raise Suspended(session.id, branch)
    for known in context.catalogue.ports(session.id):
        if (known.branch, known.port) == (branch, port):
            raise AlreadyExists(
                "exposed port",
                str(port),
                hint=f"{LOOPBACK}:{known.host_port} leads to it: waypoint ports {session.id}",
            )
    free = _free_port(port, host_port, context.catalogue.host_ports())
    record = PortRecord(session_id=session.id, branch=branch, port=port, host_port=free)
    context.catalogue.add_port(record)
    try:
        refusal = _ring(context, session).get(record.host_port)
        if refusal is not None:
            raise _taken(record.host_port, refusal)
    except BaseException:
        unexpose_port(context, session, branch, port)
        raise
    return record


def unexpose_port(context: Context, session: SessionRecord, branch: str, port: int) -> None:
    """Let nothing lead to the branch's ``port`` any more; connections under way end."""
    for record in context.catalogue.ports(session.id):
        if (record.branch, record.port) == (branch, port):
            context.catalogue.remove_port(record)
            settle_forwarder(context, session.id)
            return
    raise NotFound("exposed port", str(port), hint=f"waypoint ports {session.id} lists them")


def exposed_ports(context: Context, session: SessionRecord) -> list[ExposedPort]:
    ensure_forwarder(context, session)
    mend_networks(context, session)
    pids = {
        branch.name: branch.init_pid
        for branch in context.catalogue.branches(session.id)
        if context.is_running(branch)
    }
    return [
        ExposedPort(
            branch=record.branch,
            port=record.port,
            host_port=record.host_port,
            is_listening=record.branch in pids and record.port in listening_ports(pids[record.branch]),
        )
        for record in context.catalogue.ports(session.id)
    ]


def ensure_forwarder(context: Context, session: SessionRecord) -> None:
    """Start the session's forwarder if it has something to do and is not there."""
    if context.catalogue.live_ports(session.id) and not _is_there(context, session):
        os.close(_start(context, session))


def lead_again(context: Context, session: SessionRecord) -> None:
    """Branches are back: return when their ports lead to them again. A port that someone else has by now is named."""
    if not context.catalogue.live_ports(session.id):
        return
    for port, reason in _ring(context, session).items():
        log.warning("port %d of the host does not lead to session %s: %s", port, session.id, reason)


def settle_forwarder(context: Context, session_id: str) -> None:
    """Ports were taken away: return when the forwarder, if there is one, has let go of them, or has ended."""
    path = context.layout.lock(forwarder_lock(session_id))
    if not path.exists():
        return
    _ask(context, session_id)
    if context.catalogue.live_ports(session_id):
        return
    with locked(path, what=f"the forwarder of session {session_id}", timeout_s=END_TIMEOUT_S):
        bell_path(context, session_id).unlink(missing_ok=True)  # one that was killed has left them
        path.unlink(missing_ok=True)


def bell_path(context: Context, session_id: str) -> Path:
    return context.layout.lock(f"{forwarder_lock(session_id)}:bell")


def _free_port(port: int, host_port: int | None, promised: Set[int]) -> int:
    """The port of the host to use; one that leads to another branch already is promised to that."""
    if host_port is not None:
        return _bindable(host_port, promised)
    try:
        return _bindable(port, promised)
    except Busy:
        return _bindable(0, promised)


def _bindable(number: int, promised: Set[int]) -> int:
    if number in promised:
        raise _taken(number, "it leads to another branch: waypoint ports")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, number))
            probe.listen()  # two can be bound so at once, but not listen
        except OSError as error:
            raise _taken(number, error.strerror or str(error)) from error
        return int(probe.getsockname()[1])


def _taken(host_port: int, reason: str) -> Busy:
    return Busy(
        f"port {host_port} of the host cannot be used: {reason}",
        hint="choose another, or leave --host-port out",
    )


def _is_there(context: Context, session: SessionRecord) -> bool:
    path = context.layout.lock(forwarder_lock(session.id))
    if not path.exists():
        return False
    try:
        with locked(path, what="forwarder", wait=False):
            return False
    except Busy:
        return True


def _start(context: Context, session: SessionRecord) -> int:
    """Start it; what is returned can be read to its end when it answers, or has ended."""
    ready, ready_end = os.pipe()
    try:
        detach(
            (
                *(sys.executable, "-m", "waypoint.session.background.forwarder"),
                *(os.fspath(context.layout.state_dir), session.id, str(ready_end)),
            ),
            pass_fds=(ready_end,),
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(ready_end)
    return ready


def _ring(context: Context, session: SessionRecord) -> dict[int, str]:
    """Have the forwarder look at the catalogue; the ports of the host that it cannot have, and why."""
    for _ in range(TRIES):
        answer = _ask(context, session.id)
        if answer is not None:
            return answer
        ready = _start(context, session)
        try:
            os.read(ready, 1)
        finally:
            os.close(ready)
    raise Broken(f"the forwarder of session {session.id} does not start", hint="try again")


def _ask(context: Context, session_id: str) -> dict[int, str] | None:
    """Ring; None if nobody answers."""
    path = bell_path(context, session_id)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError), socket.socket(socket.AF_UNIX) as bell:
        try:
            bell.settimeout(ANSWER_TIMEOUT_S)
            bell.connect(f"/proc/self/fd/{directory}/{path.name}")  # sun_path has no room for a long one
            text = b"".join(iter(lambda: bell.recv(4096), b"")).decode()
        finally:
            os.close(directory)
        if text.endswith(".\n"):
            words = (line.partition(" ") for line in text.splitlines()[:-1])
            return {int(port): reason for port, _, reason in words}
    return None
