"""Who is at the other end of a unix connection: what a server asks for by SO_PEERCRED is right after a restore too.

CRIU would make all connections as root. See native/preload/unix_peers.h. The server's view is what counts: a client may
see its own user and group instead of the server's.
"""

import os
from contextlib import suppress
from pathlib import Path

from waypoint.kernel.criu.images import mark_unix_connections, unix_connections
from waypoint.kernel.criu.refusal import CannotBeSaved

__all__ = ["PeersSeen", "SavedPeers"]

_FILE = "unix-peers"  # beside the images
_SEEN, _SAVED = "WAYPOINT_UNIX_PEERS", "WAYPOINT_SAVED_UNIX_PEERS"
_ROOT = (0, 0)
NUMBERS_MAX = 4095  # bits for them in the type of a socket: 12


class PeersSeen:
    """A context manager for the time of one dump: what connected unix sockets say of their peers."""

    def __enter__(self) -> "PeersSeen":
        self._output = os.memfd_create("peers", os.MFD_CLOEXEC)
        self.descriptors = (self._output,)
        self.env = {_SEEN: str(self._output)}
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._output)

    def keep(self, images: Path) -> None:
        """Write beside the images, which are complete, who made each connection. Raises CannotBeSaved."""
        text = os.pread(self._output, os.fstat(self._output).st_size, 0)
        seen = {
            int(inode): (int(uid), int(gid)) for inode, _, uid, gid in map(bytes.split, text.splitlines())
        }
        if not seen:
            return
        numbers: dict[tuple[int, int], int] = {}
        marks = {}
        for connection in unix_connections(images):
            peer = seen.get(connection.server, _ROOT)
            marks[connection] = 0 if peer == _ROOT else numbers.setdefault(peer, len(numbers) + 1)
        if len(numbers) > NUMBERS_MAX:
            raise CannotBeSaved("unix connections of too many users are open", hint="end some of them")
        if marks:
            mark_unix_connections(images, marks)
        if numbers:
            (images / _FILE).write_text("".join(f"{uid} {gid}\n" for uid, gid in numbers))


class SavedPeers:
    """A context manager for the time of one restore."""

    def __init__(self, images: Path) -> None:
        self._file = images / _FILE
        self.descriptors: tuple[int, ...] = ()
        self.env: dict[str, str] = {}

    def __enter__(self) -> "SavedPeers":
        with suppress(FileNotFoundError):  # all of root
            fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            self.descriptors, self.env = (fd,), {_SAVED: str(fd)}
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self.descriptors:
            os.close(fd)
