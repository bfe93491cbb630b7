"""Calls that restored processes make at the last moment, before any of them runs (native/preload/last_calls.c).

They set the POSIX locks again that CRIU loses. And clients connect again that their server had not accepted: of such a
connection a checkpoint has only the client's end, and nothing was sent over it yet.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from waypoint.kernel.criu.handed_over import HandedOver
from waypoint.kernel.criu.images import read_posix_locks, take_out_connections
from waypoint.kernel.network.in_flight import Endpoint

__all__ = ["LastCalls", "connect_again_later"]

_LAST_CALLS = "WAYPOINT_LAST_CALLS"
_FILE = "connect.json"


def connect_again_later(images: Path, waiting: Collection[tuple[Endpoint, Endpoint]]) -> None:
    """Let these clients, each given with its server, be restored without a connection, and connect as the last thing."""
    taken = take_out_connections(images, waiting)
    if taken:
        calls = [(one.pid, one.fd, one.flags, one.peer.hex()) for one in taken]
        (images / _FILE).write_text(json.dumps(calls))


class LastCalls(HandedOver):
    """A context manager for the time of one restore."""

    def __init__(self, images: Path) -> None:
        super().__init__(_LAST_CALLS)
        self._images = images

    def __enter__(self) -> "LastCalls":
        self._calls = [*self._locks(), *self._connections()]
        if self._calls:
            self._hand_over(os.memfd_create("calls", os.MFD_CLOEXEC))
        return self

    def complete(self, outside: Mapping[int, int]) -> None:
        """Say which processes these are, by the pids they have for us. CRIU has not let them go yet."""
        lines = "".join(f"{kind} {outside[pid]} {words}\n" for kind, pid, words in self._calls)
        for fd in self.descriptors:
            os.pwrite(fd, lines.encode(), 0)

    def _locks(self) -> Iterator[tuple[str, int, str]]:
        for lock in sorted(read_posix_locks(self._images)):
            yield "lock", lock.pid, f"{lock.fd} {lock.type} {lock.start} {lock.length}"

    def _connections(self) -> Iterator[tuple[str, int, str]]:
        kept = self._images / _FILE
        for pid, fd, flags, address in json.loads(kept.read_bytes()) if kept.exists() else ():
            yield "connect", pid, f"{fd} {flags} {address}"
