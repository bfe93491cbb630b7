"""What operations on a session have in common: the lock of a branch, and what must be true before they publish."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from waypoint.errors import AlreadyExists, Broken, NotFound, Suspended, UsageError
from waypoint.model import BranchRecord, SessionRecord
from waypoint.names import parse_name
from waypoint.session.context import Context
from waypoint.store.lock import locked

__all__ = [
    "check_new_names",
    "default_branch_names",
    "default_name",
    "hold_branch",
    "require_publishable",
    "running_branch",
    "settle_abandoned",
]


@contextmanager
def hold_branch(context: Context, session_id: str, branch: str, *, wait: bool) -> Iterator[int]:
    """Hold the branch lock; whatever a dead holder left undone is settled first."""
    what = f"branch {branch!r} of session {session_id}"
    with locked(context.branch_lock(session_id, branch), what=what, wait=wait) as fd:
        settle_abandoned(context, session_id, branch)
        try:
            yield fd
        except BaseException:
            # The branch was not made, or was removed while we waited: taking the lock has made its file, so delete it.
            if not context.has_branch(session_id, branch):
                context.remove_locks(session_id, branch)
            raise


def settle_abandoned(
    context: Context, session_id: str, branch: str, *, is_before_removal: bool = False
) -> None:
    """Settle what a dead process left undone on a branch, whose lock the caller holds.

    ``is_before_removal`` says that the caller is about to remove the branch.
    """
    if context.catalogue.has_unfinished():
        from waypoint.session.lifecycle.recovery import recover_branch  # seldom needed

        recover_branch(context, session_id, branch, is_before_removal=is_before_removal)


def running_branch(context: Context, session: SessionRecord, name: str) -> BranchRecord:
    branch = context.catalogue.branch(session.id, name)
    if branch.is_suspended:
        raise Suspended(session.id, name)
    if not context.is_running(branch):
        raise Broken(
            f"branch {name!r} of session {session.id} is not running",
            hint=f"restore a checkpoint: waypoint restore {session.id}:{name} NAME",
        )
    return branch


def require_publishable(context: Context, session_id: str, name: str | None = None) -> None:
    """Call it in the transaction that publishes: much may have happened since the operation began."""
    if not context.catalogue.session(session_id).is_open:
        raise NotFound("session", session_id, hint="it is being removed: waypoint list")
    if name is not None and context.catalogue.has_name(session_id, name):
        raise AlreadyExists("branch or checkpoint", name)


def check_new_names(context: Context, session_id: str, names: Sequence[str]) -> None:
    """Refuse names that new branches cannot have, before anything is made for them."""
    if len(set(names)) != len(names):
        raise UsageError("the names of new branches must differ", hint="give each branch a name of its own")
    work_dir = context.catalogue.session(session_id).settings.work_dir
    for name in names:
        parse_name("branch", name)
        if work_dir == os.path.realpath(context.layout.session(session_id) / name):
            raise AlreadyExists("work directory", name)
        if context.catalogue.has_name(session_id, name):
            raise AlreadyExists("branch or checkpoint", name)


def default_name(context: Context, session_id: str, kind: str) -> str:
    while True:
        name = f"{kind}-{context.catalogue.next_number(session_id)}"
        if not context.catalogue.has_name(session_id, name):
            return name


def default_branch_names(context: Context, session_id: str, count: int) -> list[str]:
    """Names for new branches that nobody has asked for by name."""
    return [default_name(context, session_id, "fork") for _ in range(count)]
