"""Which limits of a branch were reached while a command ran.

On the light path of exec, but only for branches that have limits: see watch_limits() of :mod:`waypoint.session.commands.exec`.
"""

from __future__ import annotations

from waypoint.errors import LimitReached
from waypoint.store.limit_record import read_limits, size_text

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from waypoint.session.commands.branch_address import BranchAddress
    from waypoint.store.limit_record import CountedLimit

__all__ = ["LimitWatch"]

# The file system refuses a write that does not fit whole, with the metadata it may need: so near counts as reached.
_DISK_MARGIN_BYTES = 1 << 20


class LimitWatch:
    """Reads the counters of a branch when it is constructed, and compares them later."""

    __slots__ = ("_address", "_before", "_incarnation", "_limits")

    def __init__(self, address: BranchAddress, incarnation: str) -> None:
        self._address = address
        self._incarnation = incarnation
        self._limits = read_limits(address.state_dir, incarnation)
        self._before = [_count(limit) if limit.key else _is_full(limit) for limit in self._limits]

    def reached(self) -> tuple[LimitReached, ...]:
        """The limits that were reached since."""
        found = []
        for limit, before in zip(self._limits, self._before, strict=True):
            if limit.key:
                times = _count(limit) - before
                if times > 0:
                    found.append(_reached(limit, times))
            elif _is_full(limit):
                self._recount(limit)
                if not before or _is_full(limit):  # not of a command that has just freed space
                    found.append(_reached(limit, None))
        return tuple(found)

    def _recount(self, limit: CountedLimit) -> None:
        """Count the files again: deleted files that a checkpoint holds must not hinder the next command."""
        from waypoint.session.commands.disk_space import recount_disk_space

        recount_disk_space(self._address, self._incarnation, limit.maximum)


def _reached(limit: CountedLimit, times: int | None) -> LimitReached:
    maximum = str(limit.maximum) if limit.name == "pids" else size_text(limit.maximum)
    if limit.name == "memory":
        what = "1 process was killed" if times == 1 else f"{times} processes were killed"
    elif limit.name == "pids":
        what = "1 new process was refused" if times == 1 else f"{times} new processes were refused"
    else:
        what = "nothing more can be written until files are deleted"
    return LimitReached(limit.name, limit.maximum, times, f"{limit.name} limit of {maximum} reached: {what}")


def _count(limit: CountedLimit) -> int:
    try:
        with open(limit.path) as counters:
            for line in counters:
                key, _, value = line.partition(" ")
                if key == limit.key:
                    return int(value)
    except OSError:  # the branch has ended meanwhile
        return 0
    return 0


def _is_full(limit: CountedLimit) -> bool:
    try:
        maximum = _read(limit, "max_referenced")
        taken = sum(
            _read(limit, name)
            for name in ("referenced", "rsv_data", "rsv_meta_pertrans", "rsv_meta_prealloc")
        )
    except OSError:  # the branch has ended meanwhile
        return False
    return 0 < maximum <= taken + _DISK_MARGIN_BYTES


def _read(limit: CountedLimit, name: str) -> int:
    with open(f"{limit.path}/{name}") as file:
        return int(file.read())
