"""Port forwards from the host's loopback to branches: ``waypoint expose`` and ``waypoint ports``.

The catalogue says which port is forwarded where. One background process for each session with exposed ports does it
(:mod:`waypoint.session.background.forwarder`); if it is killed, the next operation starts it again. It learns of
changes by its *bell*, a socket: when rung, it reads the catalogue, and answers with the ports that it could not open.
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
from waypoint.session.network.network_repair import repair_networks
from waypoint.store.lock import forwarder_lock, locked

__all__ = [
    "LOOPBACK",
    "ExposedPort",
    "bell_path",
    "ensure_forwarder",
    "expose_port",
    "exposed_ports",
    "restore_port_forwards",
    "settle_forwarder",
    "unexpose_port",
]

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
END_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
TRIES = 3  # the forwarder may be just ending because its last port was removed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedPort:
    """``host_port`` of the host's loopback is forwarded to ``port`` of a branch, even if nothing listens there now."""

    branch: str
    port: int
    host_port: int
    is_listening: bool


def expose_port(
    context: Context, session: SessionRecord, branch: str, port: int, host_port: int | None = None
) -> PortRecord:
    """Forward a port of the host's loopback to the branch's ``port``: by default the same number if it is free."""
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
                hint=f"{LOOPBACK}:{known.host_port} is forwarded to it: waypoint ports {session.id}",
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
    """Stop forwarding to the branch's ``port``; open connections end."""
    for record in context.catalogue.ports(session.id):
        if (record.branch, record.port) == (branch, port):
            context.catalogue.remove_port(record)
            settle_forwarder(context, session.id)
            return
    raise NotFound("exposed port", str(port), hint=f"waypoint ports {session.id} lists them")


def exposed_ports(context: Context, session: SessionRecord) -> list[ExposedPort]:
    ensure_forwarder(context, session)
    repair_networks(context, session)
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
    """Start the session's forwarder if it has something to do and does not run."""
    if context.catalogue.live_ports(session.id) and not _is_running(context, session):
        os.close(_start(context, session))


def restore_port_forwards(context: Context, session: SessionRecord) -> None:
    """After branches were resumed: return when their ports are forwarded again. Warn of ports that are taken by now."""
    if not context.catalogue.live_ports(session.id):
        return
    for port, reason in _ring(context, session).items():
        log.warning("port %d of the host is not forwarded to session %s: %s", port, session.id, reason)


def settle_forwarder(context: Context, session_id: str) -> None:
    """After ports were removed: return when the forwarder, if there is one, has closed them or has ended."""
    path = context.layout.lock(forwarder_lock(session_id))
    if not path.exists():
        return
    _ask(context, session_id)
    if context.catalogue.live_ports(session_id):
        return
    with locked(path, what=f"the forwarder of session {session_id}", timeout_s=END_TIMEOUT_S):
        bell_path(context, session_id).unlink(missing_ok=True)  # left by a forwarder that was killed
        path.unlink(missing_ok=True)


def bell_path(context: Context, session_id: str) -> Path:
    return context.layout.lock(f"{forwarder_lock(session_id)}:bell")


def _free_port(port: int, host_port: int | None, promised: Set[int]) -> int:
    """The port of the host to use, none of those ``promised`` to other branches."""
    if host_port is not None:
        return _bindable(host_port, promised)
    try:
        return _bindable(port, promised)
    except Busy:
        return _bindable(0, promised)


def _bindable(number: int, promised: Set[int]) -> int:
    if number in promised:
        raise _taken(number, "it is forwarded to another branch: waypoint ports")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, number))
            probe.listen()  # two sockets can be bound to it like this, but only one can listen
        except OSError as error:
            raise _taken(number, error.strerror or str(error)) from error
        return int(probe.getsockname()[1])


def _taken(host_port: int, reason: str) -> Busy:
    return Busy(
        f"port {host_port} of the host cannot be used: {reason}",
        hint="choose another, or leave --host-port out",
    )


def _is_running(context: Context, session: SessionRecord) -> bool:
    path = context.layout.lock(forwarder_lock(session.id))
    if not path.exists():
        return False
    try:
        with locked(path, what="forwarder", wait=False):
            return False
    except Busy:
        return True


def _start(context: Context, session: SessionRecord) -> int:
    """Start the forwarder; the descriptor returned is at end of file when it can be asked, or has ended."""
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
    """Make the forwarder read the catalogue; return the ports of the host that it cannot open, and why."""
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
    """Ring the bell and return what the forwarder answers; None if nobody answers."""
    path = bell_path(context, session_id)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError), socket.socket(socket.AF_UNIX) as bell:
        try:
            bell.settimeout(ANSWER_TIMEOUT_S)
            bell.connect(f"/proc/self/fd/{directory}/{path.name}")  # sun_path cannot hold a long path
            text = b"".join(iter(lambda: bell.recv(4096), b"")).decode()
        finally:
            os.close(directory)
        if text.endswith(".\n"):
            words = (line.partition(" ") for line in text.splitlines()[:-1])
            return {int(port): reason for port, _, reason in words}
    return None
