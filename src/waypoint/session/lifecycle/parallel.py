"""Make several branches in parallel, each whole or not at all."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all

from waypoint.errors import WaypointError
from waypoint.model import BranchRecord

__all__ = ["make_branches"]

AT_ONCE_MAX = 8


def make_branches(
    names: Sequence[str], make: Callable[[str], BranchRecord]
) -> tuple[list[BranchRecord], dict[str, WaypointError]]:
    """Call ``make`` for each name, several at a time; return what was made, and the errors of the others.

    With one name, its error is raised.
    """
    with ThreadPoolExecutor(min(len(names), AT_ONCE_MAX)) as pool:
        pending = {name: pool.submit(make, name) for name in names}
        try:
            wait_for_all(pending.values())
        except BaseException:  # a signal: those in progress are finished, the rest is not begun
            pool.shutdown(cancel_futures=True)
            raise
    made: list[BranchRecord] = []
    errors: dict[str, WaypointError] = {}
    for name, future in pending.items():
        try:
            made.append(future.result())
        except WaypointError as error:
            errors[name] = error
    if len(errors) == len(names) == 1:
        raise next(iter(errors.values()))
    return made, errors
