"""Who is at the other end of a unix connection: what a server asks for by SO_PEERCRED is right after a restore too.

CRIU would make all connections as root. See native/preload/unix_peers.h. The server's view is what counts: a client may
see its own user and group instead of the server's.
"""

from pathlib import Path

from waypoint.kernel.criu.handed_over import Input, Output
from waypoint.kernel.criu.images import mark_unix_connections, unix_connections
from waypoint.kernel.criu.refusal import CannotBeSaved

__all__ = ["PEERS_SEEN", "keep_peers", "saved_peers"]

PEERS_SEEN = "WAYPOINT_UNIX_PEERS"
_FILE = "unix-peers"  # beside the images
_SAVED = "WAYPOINT_SAVED_UNIX_PEERS"
_ROOT = (0, 0)
NUMBERS_MAX = 4095  # bits for them in the type of a socket: 12


def keep_peers(images: Path, seen: Output) -> None:
    """Write beside the images, which are complete, who made each connection. Raises CannotBeSaved."""
    peers = {
        int(inode): (int(uid), int(gid))
        for inode, _, uid, gid in (line.split() for line in seen.read().splitlines())
    }
    if not peers:
        return
    numbers: dict[tuple[int, int], int] = {}
    marks = {}
    for connection in unix_connections(images):
        peer = peers.get(connection.server, _ROOT)
        marks[connection] = 0 if peer == _ROOT else numbers.setdefault(peer, len(numbers) + 1)
    if len(numbers) > NUMBERS_MAX:
        raise CannotBeSaved("unix connections of too many users are open", hint="end some of them")
    if marks:
        mark_unix_connections(images, marks)
    if numbers:
        (images / _FILE).write_text("".join(f"{uid} {gid}\n" for uid, gid in numbers))


def saved_peers(images: Path) -> Input:
    """For a restore. There are none if all are root."""
    return Input(_SAVED, images / _FILE)
