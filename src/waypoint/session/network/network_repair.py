"""Give branches their network back that have lost it.

The NAT of a branch is a process outside of it, which somebody may kill. It is looked for when the branch is saved,
listed or has its ports listed, and all the time by the process that forwards ports.
"""

from contextlib import suppress

from waypoint.engine.branch_network import is_cut_off, repair_network
from waypoint.errors import Busy, NotFound
from waypoint.model import SessionRecord
from waypoint.session.context import Context
from waypoint.store.lock import locked

__all__ = ["mend_networks"]


def mend_networks(context: Context, session: SessionRecord) -> None:
    """Start what has died again; a branch that someone works on is left alone."""
    for branch in context.catalogue.branches(session.id):
        if is_cut_off(context.platform, session, branch):
            lock = context.branch_lock(session.id, branch.name)
            with suppress(Busy), locked(lock, what=branch.name, wait=False):
                # Read again: it may have been restored since.
                try:
                    now = context.catalogue.branch(session.id, branch.name)
                except NotFound:  # destroyed since, and its locks with it: ours is not to stay
                    context.remove_locks(session.id, branch.name)
                    raise
                repair_network(context.platform, session, now)
