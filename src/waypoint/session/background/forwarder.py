"""The background process of a session whose branches have exposed ports; see :mod:`waypoint.session.network.port_forwards`.

It listens on the host's loopback. For each connection it reads in the catalogue which incarnation the branch has
now, so a restore need not notify it. One thread enters that network namespace, connects there, and carries the bytes.
The process holds no lock but its own, and the gate of a branch only while it moves bytes: CRIU reads the connections of
a branch while the gate is shut, and nothing may move then.
"""

import fcntl
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waypoint.engine.branch_network import open_network
from waypoint.errors import Busy, NotFound, WaypointError
from waypoint.kernel.network.byte_relay import relay, reset_when_closed
from waypoint.kernel.network.slirp import INNER_ADDRESS
from waypoint.kernel.syscalls import CLONE_NEWNET, set_namespace
from waypoint.model import PortRecord, SessionRecord
from waypoint.session.context import Context
from waypoint.session.network.network_repair import repair_networks
from waypoint.session.network.port_forwards import LOOPBACK, bell_path
from waypoint.store.lock import forwarder_lock, locked

LOOK_AGAIN_MS = 500
CONNECTIONS_MAX = 256
BACKLOG = 128
CONNECT_TIMEOUT_S = 5.0
TAKE_OVER_TIMEOUT_S = 5.0  # a forwarder that is just ending still holds the lock
# A server may listen on only one of these.
_INSIDE = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, INNER_ADDRESS))


class _Forwarder:
    def __init__(self, context: Context, session: SessionRecord) -> None:
        self._context = context
        self._session = session
        self._listeners: dict[PortRecord, socket.socket] = {}
        self._refused: dict[int, str] = {}
        self._carried: dict[socket.socket, PortRecord] = {}  # by the host's end

    def forward(self, bell: socket.socket) -> None:
        """Forward connections until no port is left to forward."""
        while self._update_ports():
            poll = select.poll()
            poll.register(bell, select.POLLIN)
            if len(self._carried) < CONNECTIONS_MAX:
                for listener in self._listeners.values():
                    poll.register(listener, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(LOOK_AGAIN_MS)}
            for record, listener in self._listeners.items():
                if listener.fileno() in ready:
                    self._accept(record, listener)
            if bell.fileno() in ready:
                self._answer(bell)

    def _update_ports(self) -> bool:
        """Open and close ports as the catalogue says now; return whether any port is left to forward."""
        try:
            is_open = self._context.catalogue.session(self._session.id).is_open
        except NotFound:
            return False
        wanted = set(self._context.catalogue.live_ports(self._session.id))
        for record in set(self._listeners) - wanted:
            self._listeners.pop(record).close()
        for end, record in list(self._carried.items()):
            if record not in wanted:
                with suppress(OSError):  # it has just ended by itself
                    end.shutdown(socket.SHUT_RDWR)
        self._refused.clear()
        for record in wanted - set(self._listeners):
            self._listen(record)
        with suppress(WaypointError, OSError):  # a branch is just ending: we look again soon
            repair_networks(self._context, self._session)
        return is_open and bool(wanted)

    def _listen(self, record: PortRecord) -> None:
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, record.host_port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            self._refused[record.host_port] = error.strerror or str(error)
        else:
            self._listeners[record] = listener

    def _answer(self, bell: socket.socket) -> None:
        caller, _ = bell.accept()
        with caller, suppress(OSError):  # the caller did not wait
            caller.setblocking(False)
            self._update_ports()
            lines = (f"{port} {reason}\n" for port, reason in self._refused.items())
            caller.sendall("".join((*lines, ".\n")).encode())

    def _accept(self, record: PortRecord, listener: socket.socket) -> None:
        try:
            end, _ = listener.accept()
        except OSError:  # the caller has hung up already, or too many files are open
            return
        self._carried[end] = record
        threading.Thread(target=self._carry, args=(record, end), daemon=True).start()

    def _carry(self, record: PortRecord, end: socket.socket) -> None:
        """Carry one connection to its end, in a thread of its own, which enters the branch's network for good."""
        with end:
            try:
                with self._gate(record.branch) as gate:
                    relay(end, self._connect(record), holding=lambda: _held(gate))
            except (WaypointError, OSError):  # nobody answers there
                reset_when_closed(end)
            finally:
                self._carried.pop(end)

    def _connect(self, record: PortRecord) -> socket.socket:
        branch = self._context.catalogue.branch(self._session.id, record.branch)
        with open_network(self._context.platform, branch) as network:
            set_namespace(network, CLONE_NEWNET)
        for family, address in _INSIDE[:-1]:
            with suppress(OSError):  # nobody listens there, or the kernel has no IPv6
                return _connected(family, address, record.port)
        return _connected(*_INSIDE[-1], record.port)

    @contextmanager
    def _gate(self, branch: str) -> Iterator[int]:
        self._context.catalogue.branch(self._session.id, branch)  # a lock file is made only for what exists
        path = self._context.gate_lock(self._session.id, branch)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)


@contextmanager
def _held(gate: int) -> Iterator[None]:
    """Hold a branch's gate, so that no checkpoint of it is in progress."""
    fcntl.flock(gate, fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(gate, fcntl.LOCK_UN)


def _connected(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    inside = socket.socket(family)
    try:
        inside.settimeout(CONNECT_TIMEOUT_S)
        inside.connect((address, port))
    except BaseException:
        inside.close()
        raise
    return inside


@contextmanager
def _bell(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX) as bell:
        try:
            bell.bind(f"/proc/self/fd/{directory}/{path.name}")
            bell.listen(BACKLOG)
            yield bell
        finally:
            os.close(directory)
            path.unlink(missing_ok=True)


def main(state_dir: str, session_id: str, ready: str) -> None:
    os.chdir("/")
    os.umask(0o077)  # only root may ring the bell
    context = Context(Path(state_dir))
    try:
        session = context.catalogue.session(session_id)
        lock = context.layout.lock(forwarder_lock(session.id))
        with locked(lock, what="forwarder", timeout_s=TAKE_OVER_TIMEOUT_S):
            with _bell(bell_path(context, session.id)) as bell:
                os.close(int(ready))
                _Forwarder(context, session).forward(bell)
            lock.unlink(missing_ok=True)  # last: the next forwarder has a bell of its own
    except (Busy, NotFound):  # another one forwards, or there is nothing left to forward
        return
    finally:
        context.catalogue.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
