"""Locks between processes. They are flocks, so the kernel frees them when their holder dies.

Each branch has three:

* the *branch* lock, exclusive, for the length of a snapshot, restore, fork, destroy or copy into the branch,
  and shared for that of a copy out of it;
* the *gate*: shared while a client connects to init, exclusive while the branch is dumped. CRIU cannot
  save a connection whose other end is outside, so nobody may connect then;
* one *terminal* lock for each terminal, exclusive while a command runs in its shell.
"""

from __future__ import annotations

import fcntl
import os
import time

from waypoint.errors import Busy

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from os import PathLike

ASK_AGAIN_S = 0.02

__all__ = ["attendant_lock", "branch_lock", "forwarder_lock", "gate_lock", "locked", "terminal_lock"]


# Names of locks contain separators that names of branches and terminals cannot contain. A lock of a whole session has an
# empty name in place of the branch's.


def branch_lock(session_id: str, branch: str) -> str:
    """The name of a branch's lock; without a branch, of the session's own lock."""
    return f"{session_id}:{branch}" if branch else session_id


def attendant_lock(session_id: str) -> str:
    """Held by the background process of a session that may ask for its own snapshots."""
    return f"{session_id}::attendant"


def forwarder_lock(session_id: str) -> str:
    """Held by the background process that forwards ports of the host to ports of a session's branches."""
    return f"{session_id}::forwarder"


def gate_lock(session_id: str, branch: str) -> str:
    return f"{session_id}:{branch}:gate"


def terminal_lock(session_id: str, branch: str, terminal: str) -> str:
    return f"{session_id}:{branch}:terminal:{terminal}"


class locked:
    """Hold the lock at ``path`` for the block; its descriptor is the block's value.

    It waits for a lock that someone else holds; with ``wait=False``, or after ``timeout_s``, it raises Busy,
    naming ``what``, with ``hint``. A child that inherits the descriptor keeps the lock until it ends, even if
    we die first.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        what: str,
        wait: bool = True,
        shared: bool = False,
        hint: str = "leave out --no-wait to wait for it",
        timeout_s: float | None = None,
    ) -> None:
        self._path = path
        self._what = what
        self._hint = hint
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        if not wait:
            timeout_s = 0.0
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def __enter__(self) -> int:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._flock(fd)
                if self._is_still_there(fd):
                    self._fd = fd
                    return fd
            except BlockingIOError as error:
                os.close(fd)
                raise Busy(f"{self._what} is busy", hint=self._hint) from error
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # its last holder removed the file while we waited: take the new one

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _flock(self, fd: int) -> None:
        if self._deadline is None:
            fcntl.flock(fd, self._kind)
            return
        while True:  # flock has no timeout: ask until ours is over
            try:
                fcntl.flock(fd, self._kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= self._deadline:
                    raise
                time.sleep(ASK_AGAIN_S)
            else:
                return

    def _is_still_there(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except FileNotFoundError:
            return False
