"""Free space for the next command in a branch that has reached its disk limit."""

from collections.abc import Callable
from pathlib import Path

from waypoint.engine.disk_limit import recount_space_left
from waypoint.engine.platform import cgroup_of
from waypoint.errors import Busy, EngineError, ShellError
from waypoint.kernel.cgroup.group import find_cgroup2
from waypoint.kernel.storage.quota import Account
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.store.layout import Layout
from waypoint.store.limit_record import read_limits
from waypoint.store.live import lock_path
from waypoint.store.lock import branch_lock, locked

__all__ = ["recount_disk_space", "start_with_reserve"]

RAISED_BYTES_MAX = 16 << 20  # for all such texts together, and what commands have used of it
RESERVE_BYTES = 512 << 10  # for the metadata that the text of a command changes


def recount_disk_space(address: BranchAddress, incarnation: str, limit: int) -> None:
    """Count the files again. If the branch is busy or does not freeze, do nothing: the next command tries again."""
    try:
        with _branch_lock(address) as lock:
            _count(Layout(Path(address.state_dir)), incarnation, limit, lock)
    except (Busy, EngineError):
        return


def start_with_reserve(
    address: BranchAddress, incarnation: str, text_bytes: int, start: Callable[[], int]
) -> int:
    """Start a command whose text did not fit: init keeps it in a file of the branch.

    The limit is raised a little, only until the command has started; the command may use that too. Without it nobody
    could free space from a terminal.
    """
    reserve = RESERVE_BYTES + text_bytes
    limit = next(
        (limit for limit in read_limits(address.state_dir, incarnation) if limit.name == "disk"), None
    )
    if limit is None:
        return start()
    layout = Layout(Path(address.state_dir))
    try:
        with _branch_lock(address) as lock:
            if _count(layout, incarnation, limit.maximum, lock) > reserve:
                return start()
            account = Account.of(layout.layer(incarnation))
            maximum = account.maximum()
            if maximum is not None:
                account.set_maximum(min(max(maximum, account.taken()) + reserve, maximum + RAISED_BYTES_MAX))
            try:
                return start()
            finally:
                account.set_maximum(maximum)
    except Busy as error:
        raise ShellError(
            f"{address.where} has reached its disk limit, and is busy", hint="run the command again"
        ) from error


def _count(layout: Layout, incarnation: str, limit: int, lock: int) -> int:
    cgroup = cgroup_of(layout, find_cgroup2(), incarnation)
    return recount_space_left(layout, incarnation, limit, cgroup, hold=(lock,))


def _branch_lock(address: BranchAddress) -> locked:
    """The branch's lock, without waiting for it: whoever holds it may be waiting for us."""
    name = branch_lock(address.session_id, address.branch)
    return locked(lock_path(address.state_dir, name), what=address.where, wait=False)
