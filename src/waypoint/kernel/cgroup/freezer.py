"""Keep every process of a cgroup from running, and never longer than we live.

A frozen cgroup stays so when whoever froze it dies. So a guard waits beside us: a process that does nothing until
it is alone, and then lets the members go. The locks that it is given are held until it has done so.
"""

import os
from collections.abc import Sequence

from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.processes.programs import DEVNULL, Popen, spawn

__all__ = ["Freezer"]

_GUARD = 'read -r _; echo 0 >"$1"'


class Freezer:
    """A context manager: what was stopped in the block runs again after it. Members may also be killed meanwhile."""

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
        if self._guard is not None:  # at once: it must not let go of what someone else stops later
            self._guard.kill()
            self._guard.wait()
        os.close(self._pipe)
        self._pipe = None

    def begin(self) -> None:
        """Let no member run another instruction; one that somebody traces stays where it is when it is let go."""
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
        """Until the kernel says that all have stopped."""
        self._cgroup.await_frozen()
