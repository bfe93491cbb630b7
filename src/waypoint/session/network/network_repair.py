"""Start the NAT of branches again whose NAT has died.

The NAT of a branch is a process outside of it, which somebody may kill. We look for it when the branch is saved, listed
or has its ports listed, and the process that forwards ports looks for it all the time.
"""

from contextlib import suppress

from waypoint.engine.branch_network import is_cut_off, repair_network
from waypoint.errors import Busy, NotFound
from waypoint.model import SessionRecord
from waypoint.session.context import Context
from waypoint.store.lock import locked

__all__ = ["repair_networks"]


def repair_networks(context: Context, session: SessionRecord) -> None:
    """Start every NAT again that has died; a branch that someone works on is left alone."""
    for branch in context.catalogue.branches(session.id):
        if is_cut_off(context.platform, session, branch):
            lock = context.branch_lock(session.id, branch.name)
            with suppress(Busy), locked(lock, what=branch.name, wait=False):
                # Read again: it may have been restored since.
                try:
                    now = context.catalogue.branch(session.id, branch.name)
                except NotFound:
                    # The branch was destroyed meanwhile, with its locks; ours re-created the file, so delete it.
                    context.remove_locks(session.id, branch.name)
                    raise
                repair_network(context.platform, session, now)
