"""The operations: create, restore, fork, promote, destroy, cleanup.

Each takes the lock of its branch, records itself as begun, builds something new beside what exists, and
publishes it in one transaction at the end. What fails is undone and the branch runs on; what dies is
found and settled by :mod:`waypoint.session.lifecycle.recovery`.

Read next: :mod:`waypoint.session.lifecycle.snapshot` (snapshot, park) and :mod:`waypoint.session.lifecycle.suspend`.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import show_work
from waypoint.errors import AlreadyExists, ForkIncomplete, UsageError
from waypoint.model import (
    Base,
    BranchRecord,
    CheckpointRecord,
    OperationStatus,
    SessionRecord,
    SessionSettings,
)
from waypoint.names import MAIN, parse_name
from waypoint.session.context import Context
from waypoint.session.creation.wall_choice import check_walls
from waypoint.session.lifecycle.branch_lock import (
    check_new_names,
    holding,
    require_publishable,
    running_branch,
)
from waypoint.session.lifecycle.branch_start import launch_branch, publish_restored, revive_branch
from waypoint.session.lifecycle.parallel import make_branches
from waypoint.session.lifecycle.recovery import recover_branch
from waypoint.session.lifecycle.remove import remove_branch, remove_session, rename_links
from waypoint.store.layout import new_id
from waypoint.store.lock import locked

__all__ = [
    "cleanup_session",
    "create_session",
    "destroy_branch",
    "fork_checkpoint",
    "promote_branch",
    "restore_branch",
]


def create_session(
    context: Context,
    base: Base,
    *,
    workspace: str,
    name: str | None,
    settings: SessionSettings,
    has_work_dir: bool = False,
) -> SessionRecord:
    """Make a session with a running branch ``main`` whose shell is ready.

    With ``has_work_dir``, and no other place in ``settings``, its work directory is in the state directory.
    """
    if name is not None:
        parse_name("session", name)
        if any(session.name == name for session in context.catalogue.sessions()):
            raise AlreadyExists(
                "session", name, hint=f"choose another name, or remove that session: waypoint cleanup {name}"
            )
    check_walls(settings)
    session_id = new_id(8)
    if has_work_dir and settings.work_dir is None:
        place = os.path.realpath(context.layout.work_directory(session_id))
        settings = replace(settings, work_dir=place)
    session = SessionRecord(
        id=session_id,
        name=name,
        base=base,
        workspace=workspace,
        created_at=time.time(),
        is_open=True,
        settings=settings,
    )
    incarnation = new_id()
    with (
        holding(context, session.id, MAIN, wait=True),
        context.operation("create", session.id, MAIN, incarnation=incarnation) as operation,
        context.undoing(operation) as undo,
    ):
        undo.on_failure("remove the locks", lambda: context.remove_locks(session.id, MAIN))
        undo.on_failure("remove the branch", lambda: destroy(context.platform, incarnation))
        pid = launch_branch(context, session, incarnation, operation)
        with operation.timeline.step("publish"):
            branch = BranchRecord(
                session_id=session.id,
                name=MAIN,
                incarnation=incarnation,
                init_pid=pid,
                head=None,
                created_at=session.created_at,
            )
            undo.on_failure("remove the link", lambda: _remove_links(context, session.id))
            context.point_live_link(session.id, MAIN, incarnation)
            with context.catalogue.transaction():
                context.catalogue.add_session(session)
                context.catalogue.put_branch(branch)
                is_whole = session.settings.work_dir is None
                context.end(operation, OperationStatus.DONE if is_whole else OperationStatus.PUBLISHED)
        if not is_whole:  # published before: recovery knows of the work directory from the catalogue only
            with operation.timeline.step("work"):
                show_work(context.platform, session, incarnation)
            context.end(operation, OperationStatus.DONE)
    return session


def restore_branch(
    context: Context,
    session: SessionRecord,
    branch_name: str,
    checkpoint: CheckpointRecord,
    *,
    wait: bool = True,
) -> None:
    """Make the branch that checkpoint again.

    The checkpoint comes to life beside the branch first; the branch is given up only when it answers.
    """
    with holding(context, session.id, branch_name, wait=wait):
        old = context.catalogue.branch(session.id, branch_name)
        incarnation = new_id()
        with context.operation(
            "restore",
            session.id,
            branch_name,
            incarnation=incarnation,
            old_incarnation=old.incarnation,
            checkpoint=checkpoint.id,
        ) as operation:
            with context.undoing(operation) as undo:
                undo.on_failure("remove the copy", lambda: destroy(context.platform, incarnation))
                branch = revive_branch(
                    context, session, checkpoint, branch_name, incarnation, old.created_at, operation
                )
                publish_restored(context, branch, operation)
            with operation.timeline.step("retire"):
                context.point_live_link(session.id, branch_name, incarnation)
                if branch_name == MAIN:
                    show_work(context.platform, session, incarnation)
                destroy(context.platform, old.incarnation)
            context.end(operation, OperationStatus.DONE)


def fork_checkpoint(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, names: Sequence[str]
) -> list[BranchRecord]:
    """Bring the checkpoint to life once for each name, at the same time, beside all other branches.

    Each branch is made whole or not at all. If some fail, ForkIncomplete names them; the others run.
    """
    check_new_names(context, session.id, names)
    _ = context.platform  # found once, not by every thread
    began = time.time()
    # They end in any order; a microsecond each keeps them listed in the order of their names.
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
    incarnation = new_id()
    with ExitStack() as stack:
        stack.enter_context(holding(context, session.id, name, wait=True))
        require_publishable(context, session.id, name)  # another process may have made it while we waited
        operation = stack.enter_context(
            context.operation("fork", session.id, name, incarnation=incarnation, checkpoint=checkpoint.id)
        )
        undo = stack.enter_context(context.undoing(operation))
        undo.on_failure("remove the locks", lambda: context.remove_locks(session.id, name))
        undo.on_failure("remove the branch", lambda: destroy(context.platform, incarnation))
        branch = revive_branch(context, session, checkpoint, name, incarnation, created_at, operation)
        with operation.timeline.step("publish"):
            undo.on_failure("remove the link", lambda: _unlink(context.layout.live(session.id, name)))
            context.point_live_link(session.id, name, incarnation)
            with context.catalogue.transaction():
                require_publishable(context, session.id, name)
                context.catalogue.put_branch(branch)
                context.end(operation, OperationStatus.DONE)
    return branch


def promote_branch(
    context: Context, session: SessionRecord, source_name: str, target_name: str, *, wait: bool = True
) -> None:
    """Let the branch ``target`` go on as ``source``: its own state is given up, and so is the name ``source``.

    Nothing is stopped or copied: the processes of ``source`` only get another name.
    """
    if source_name == target_name:
        raise UsageError(f"{source_name!r} is that branch", hint="name two branches")
    if source_name == MAIN:
        raise UsageError("a session always has a branch 'main'", hint="promote another branch over it")
    for name in (source_name, target_name):
        context.catalogue.branch(session.id, name)  # a lock file is made only for what exists
    with ExitStack() as stack:
        for name in sorted(
            (source_name, target_name)
        ):  # in one order, so that two promotions do not lock each other out
            stack.enter_context(holding(context, session.id, name, wait=wait))
        source = running_branch(context, session, source_name)
        old = context.catalogue.branch(session.id, target_name)
        operation = stack.enter_context(
            context.operation(
                "promote",
                session.id,
                target_name,
                incarnation=source.incarnation,
                old_incarnation=old.incarnation,
            )
        )
        with (
            operation.timeline.step("publish"),
            locked(context.gate_lock(session.id, target_name), what=target_name),
            locked(context.gate_lock(session.id, source_name), what=source_name),
            context.catalogue.transaction(),
        ):
            require_publishable(context, session.id)
            context.catalogue.remove_branch(session.id, source_name)
            context.catalogue.put_branch(replace(source, name=target_name, created_at=old.created_at))
            context.end(operation, OperationStatus.PUBLISHED)
        with operation.timeline.step("names"):
            rename_links(context, session.id, target_name, source.incarnation)
            if target_name == MAIN:
                show_work(context.platform, session, source.incarnation)
        with operation.timeline.step("retire"):
            destroy(context.platform, old.incarnation)
        context.end(operation, OperationStatus.DONE)


def destroy_branch(context: Context, session: SessionRecord, branch_name: str, *, wait: bool = True) -> None:
    """End a branch and remove its unsaved state; its checkpoints stay."""
    if branch_name == MAIN:
        raise UsageError(
            "the branch 'main' cannot be destroyed",
            hint=f"remove the whole session: waypoint cleanup {session.id}",
        )
    with holding(context, session.id, branch_name, wait=wait):
        branch = context.catalogue.branch(session.id, branch_name)
        with context.operation(
            "destroy", session.id, branch_name, old_incarnation=branch.incarnation, removes=True
        ) as operation:
            remove_branch(context, session.id, branch_name, branch.incarnation, operation.timeline)
            context.end(operation, OperationStatus.DONE)


def cleanup_session(context: Context, session: SessionRecord, *, force: bool = False) -> None:
    """Remove a session with all its branches and checkpoints.

    A branch that another process works on, or runs a command in, makes this fail with Busy. With ``force``
    running commands end with their branch, and an operation under way is waited for.
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
                recover_branch(context, session.id, branch.name, is_going=True)
            with context.operation("cleanup", session.id, "", removes=True) as operation:
                remove_session(context, session.id, operation.timeline)
                context.end(operation, OperationStatus.DONE)
        context.branch_lock(session.id, "").unlink(missing_ok=True)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_links(context: Context, session_id: str) -> None:
    directory = context.layout.session(session_id)
    if directory.exists():
        shutil.rmtree(directory)
