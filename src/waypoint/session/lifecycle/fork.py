"""Make new live branches from a checkpoint."""

import time
from collections.abc import Sequence

from waypoint.errors import ForkIncomplete
from waypoint.model import BranchRecord, CheckpointRecord, SessionRecord
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import check_new_names, hold_branch, require_publishable
from waypoint.session.lifecycle.branch_start import restore_as_branch
from waypoint.session.lifecycle.endings import FORK
from waypoint.session.lifecycle.parallel import make_branches
from waypoint.session.operation import begin_operation
from waypoint.store.layout import new_id

__all__ = ["fork_checkpoint"]


def fork_checkpoint(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, names: Sequence[str]
) -> list[BranchRecord]:
    """Start a new branch from the checkpoint for each name, in parallel, next to all other branches.

    Each branch is made whole or not at all. If some fail, ForkIncomplete names them; the others run.
    """
    check_new_names(context, session.id, names)
    _ = context.platform  # looked up once, not by every thread
    began = time.time()
    # They are done in any order; a microsecond each keeps them listed in the order of their names.
    moments = {name: began + number / 1_000_000 for number, name in enumerate(names)}
    made, errors = make_branches(
        names, lambda name: _fork_one(context, session, checkpoint, name, moments[name])
    )
    if errors:
        raise ForkIncomplete([branch.name for branch in made], errors)
    return made


def _fork_one(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, name: str, created_at: float
) -> BranchRecord:
    with hold_branch(context, session.id, name, wait=True):
        require_publishable(context, session.id, name)  # another process may have made it while we waited
        with begin_operation(
            context, FORK, session.id, name, incarnation=new_id(), checkpoint=checkpoint.id
        ) as operation:
            branch = restore_as_branch(operation, session, checkpoint, created_at)
            with operation.timeline.step("publish"):
                context.point_live_link(session.id, name, branch.incarnation)
                with context.catalogue.transaction():
                    require_publishable(context, session.id, name)
                    context.catalogue.put_branch(branch)
                    operation.publish()
    return branch
