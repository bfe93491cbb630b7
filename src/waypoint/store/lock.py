"""Locks between processes. They are flocks, so the kernel frees them when their holder dies.

Each branch has three:

* the *branch* lock, exclusive, for the length of a snapshot, restore, fork or destroy;
* the *gate*: shared while a client connects to init, exclusive while the branch is dumped. CRIU cannot
  save a connection whose other end is outside, so nobody may connect then;
* one *terminal* lock for each terminal, exclusive while a command runs in its shell.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waypoint.errors import Busy

__all__ = ["locked"]

BUSY_HINT = "leave out --no-wait to wait for it"


@contextmanager
def locked(
    path: Path, *, what: str, wait: bool = True, shared: bool = False, hint: str = BUSY_HINT
) -> Iterator[int]:
    """Hold the lock at ``path`` for the block; yield its descriptor.

    With ``wait=False`` a lock held by someone else raises Busy with ``what`` and ``hint``. A child that inherits
    the descriptor keeps the lock until it ends, even if we die first.
    """
    try:
        fd = _acquire(path, wait=wait, shared=shared)
    except BlockingIOError as error:
        raise Busy(f"{what} is busy", hint=hint) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _acquire(path: Path, *, wait: bool, shared: bool) -> int:
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, kind)
            if _is_same_file(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its last holder removed the file while we waited: take the new one


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
