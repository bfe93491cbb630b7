"""Unix sockets by name in a directory: a path of more than 107 bytes is too long for the kernel, a directory's is not."""

import os
import socket
from _socket import socket as Socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["connect_in", "listening_in"]


def connect_in(directory: Path, name: str, connection: Socket, timeout_s: float) -> None:
    """Connect to the socket file ``name``. Raises OSError."""
    with _reached(directory) as at:
        connection.settimeout(timeout_s)
        connection.connect(f"{at}/{name}")


@contextmanager
def listening_in(directory: Path, name: str) -> Iterator[int]:
    """A socket file that listens; the program that inherits the descriptor serves it.

    So it exists before the program runs, and whoever connects before that is ready waits.
    """
    with _reached(directory) as at, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{at}/{name}")
        listener.listen()
        yield listener.fileno()


@contextmanager
def _reached(directory: Path) -> Iterator[str]:
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{at}"
    finally:
        os.close(at)
