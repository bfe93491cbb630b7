"""Remove a branch, or a session with all it has."""

from contextlib import ExitStack

from waypoint.errors import UsageError
from waypoint.model import SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch, settle_abandoned
from waypoint.session.lifecycle.endings import CLEANUP, DESTROY
from waypoint.session.operation import begin_operation
from waypoint.store.lock import locked

__all__ = ["cleanup_session", "destroy_branch"]


def destroy_branch(context: Context, session: SessionRecord, branch_name: str, *, wait: bool = True) -> None:
    """End a branch and remove its unsaved state; its checkpoints stay."""
    if branch_name == MAIN:
        raise UsageError(
            "the branch 'main' cannot be destroyed",
            hint=f"remove the whole session: waypoint cleanup {session.id}",
        )
    with hold_branch(context, session.id, branch_name, wait=wait):
        branch = context.catalogue.branch(session.id, branch_name)
        with begin_operation(context, DESTROY, session.id, branch_name, old_incarnation=branch.incarnation):
            pass  # its ending does all the work


def cleanup_session(context: Context, session: SessionRecord, *, force: bool = False) -> None:
    """Remove a session with all its branches and checkpoints.

    A branch that another process works on, or runs a command in, makes this fail with Busy. With ``force``
    running commands end with their branch, and an operation in progress is waited for.
    """
    with locked(context.branch_lock(session.id, ""), what=f"session {session.id}"):
        with ExitStack() as held:
            for branch in context.catalogue.branches(session.id):
                what = f"branch {branch.name!r} of session {session.id}"
                hint = "wait for it, or remove it all the same: --force"
                for commands in () if force else context.terminal_locks(session.id, branch.name):
                    held.enter_context(locked(commands, what=what, wait=False, hint=hint))
                # Also with force: to kill a branch while CRIU has stopped it would leave CRIU waiting for ever.
                lock = context.branch_lock(session.id, branch.name)
                held.enter_context(locked(lock, what=what, wait=force, hint=hint))
                settle_abandoned(context, session.id, branch.name, is_before_removal=True)
            with begin_operation(context, CLEANUP, session.id, ""):
                pass  # as above
        context.branch_lock(session.id, "").unlink(missing_ok=True)
