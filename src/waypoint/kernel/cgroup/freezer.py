"""Keep every process of a cgroup from running, and never longer than we live.

A cgroup stays frozen when the process that froze it dies. So we start a guard: a process that waits until we have
ended, and then thaws the cgroup. It holds the locks that it is given until it has done so.
"""

import os
from collections.abc import Sequence

from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.processes.programs import DEVNULL, Popen, spawn

__all__ = ["Freezer"]

_GUARD = 'read -r _; echo 0 >"$1"'


class Freezer:
    """A context manager: members frozen in the block run again after it. They may also be killed meanwhile."""

    def __init__(self, cgroup: Cgroup, hold: Sequence[int] = ()) -> None:
        self._cgroup = cgroup
        self._hold = tuple(hold)
        self._pipe: int | None = None
        self._guard: Popen[bytes] | None = None

    def __enter__(self) -> "Freezer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe is None:
            return
        self._cgroup.thaw()
        if self._guard is not None:  # kill it at once: it must not thaw what someone else freezes later
            self._guard.kill()
            self._guard.wait()
        os.close(self._pipe)
        self._pipe = None

    def begin(self) -> None:
        """Begin to freeze the members. One that is traced stays where it is when its tracer lets it go."""
        waiting, self._pipe = os.pipe()
        try:
            self._guard = spawn(
                ("sh", "-c", _GUARD, "guard", os.fspath(self._cgroup.path / "cgroup.freeze")),
                stdin=waiting,
                stdout=DEVNULL,
                stderr=DEVNULL,
                pass_fds=self._hold,
            )
        finally:
            os.close(waiting)
        self._cgroup.begin_freeze()

    def wait(self) -> None:
        """Wait until the kernel reports that all members have stopped."""
        self._cgroup.await_frozen()
