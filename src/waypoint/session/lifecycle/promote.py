"""Promote a branch: it gets the name of another, which is given up."""

from contextlib import ExitStack
from dataclasses import replace

from waypoint.errors import UsageError
from waypoint.model import OperationStatus, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch, require_publishable, running_branch
from waypoint.session.lifecycle.branch_start import begin_replacement
from waypoint.session.lifecycle.endings import PROMOTE
from waypoint.store.lock import locked

__all__ = ["promote_branch"]


def promote_branch(
    context: Context, session: SessionRecord, source_name: str, target_name: str, *, wait: bool = True
) -> None:
    """Give the branch ``source`` the name ``target``: the old ``target`` is given up, and so is the name ``source``.

    The processes of ``source`` are not stopped or copied: the branch only gets another name.
    """
    if source_name == target_name:
        raise UsageError(f"branch {source_name!r} cannot be promoted over itself", hint="name two branches")
    if source_name == MAIN:
        raise UsageError(
            "the branch 'main' cannot be promoted: a session always has it",
            hint="promote another branch over it",
        )
    for name in (source_name, target_name):
        context.catalogue.branch(session.id, name)  # a lock file is made only for what exists
    with ExitStack() as stack:
        # In one order, so that two promotions do not lock each other out.
        for name in sorted((source_name, target_name)):
            stack.enter_context(hold_branch(context, session.id, name, wait=wait))
        source = running_branch(context, session, source_name)
        old = context.catalogue.branch(session.id, target_name)
        operation = stack.enter_context(begin_replacement(context, PROMOTE, old, source.incarnation))
        with (
            operation.timeline.step("publish"),
            locked(context.gate_lock(session.id, target_name), what=target_name),
            locked(context.gate_lock(session.id, source_name), what=source_name),
            context.catalogue.transaction(),
        ):
            require_publishable(context, session.id)
            context.catalogue.remove_branch(session.id, source_name)
            context.catalogue.put_branch(replace(source, name=target_name, created_at=old.created_at))
            operation.publish(OperationStatus.PUBLISHED)
