"""Start a checkpoint as a branch: with its processes, or with a fresh shell over its files."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from waypoint.engine.launch import launch
from waypoint.engine.restore import restore_checkpoint
from waypoint.errors import LaunchFailed
from waypoint.model import BranchRecord, CheckpointKind, CheckpointRecord, OperationStatus, SessionRecord
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.creation.users import User, session_user
from waypoint.session.lifecycle.branch_lock import require_publishable
from waypoint.session.operation import Ending, Operation, begin_operation
from waypoint.shell.client import InitRefused, ShellClient
from waypoint.shell.profile import UNATTENDED_ENV, ShellProfile
from waypoint.shell.selection import find_profile
from waypoint.shell.terminal import DEFAULT_SIZE, open_terminal
from waypoint.store.lock import locked

__all__ = ["begin_replacement", "launch_branch", "publish_restored", "restore_as_branch"]


def launch_branch(
    operation: Operation, session: SessionRecord, *, files_of: CheckpointRecord | None = None
) -> int:
    """Start a branch whose first shell is ready, over the base or the files of a checkpoint; return its init's pid.

    On failure parts of the incarnation may exist: the operation destroys it.
    """
    context, incarnation = operation.context, operation.incarnation
    if files_of is None:  # a shell or user that the base lacks is refused before anything is made
        found = _shell_of(session, session.base.path)
    pid = launch(context.platform, session, incarnation, operation.timeline, files_of=files_of)
    root = context.layout.mount(incarnation)
    with operation.timeline.step("shell"):
        if files_of is not None:
            found = _shell_of(session, root)
        _open_shell(root, *found, session)
    return pid


def restore_as_branch(
    operation: Operation, session: SessionRecord, checkpoint: CheckpointRecord, created_at: float
) -> BranchRecord:
    """Start the checkpoint as the operation's incarnation, which answers when this returns.

    On failure parts of the incarnation may exist: the operation destroys it.
    """
    context, incarnation = operation.context, operation.incarnation
    if checkpoint.kind is CheckpointKind.FULL:
        pid = restore_checkpoint(context.platform, session, checkpoint, incarnation, operation.timeline)
        with operation.timeline.step("answer"), ShellClient(context.layout.mount(incarnation)) as client:
            client.ping()
    else:
        pid = launch_branch(operation, session, files_of=checkpoint)
    return BranchRecord(
        session_id=session.id,
        name=operation.record.branch,
        incarnation=incarnation,
        init_pid=pid,
        head=checkpoint.id,
        created_at=created_at,
    )


def begin_replacement(
    context: Context,
    ending: Ending,
    old: BranchRecord,
    incarnation: str,
    *,
    checkpoint: CheckpointRecord | None = None,
) -> AbstractContextManager[Operation]:
    """Begin to replace the incarnation of a branch, whose lock is held."""
    return begin_operation(
        context,
        ending,
        old.session_id,
        old.name,
        incarnation=incarnation,
        old_incarnation=old.incarnation,
        checkpoint=None if checkpoint is None else checkpoint.id,
    )


def publish_restored(
    operation: Operation, branch: BranchRecord, *, also: Callable[[], None] = lambda: None
) -> None:
    """Publish the branch, which replaces what had its name, while nobody connects. The replaced one is left to remove.

    ``also`` writes what else belongs into the same transaction.
    """
    context = operation.context
    with (
        operation.timeline.step("publish"),
        locked(context.gate_lock(branch.session_id, branch.name), what=branch.name),
        context.catalogue.transaction(),
    ):
        require_publishable(context, branch.session_id)
        context.catalogue.put_branch(branch)
        also()
        operation.publish(OperationStatus.PUBLISHED)


def _shell_of(session: SessionRecord, root: Path) -> tuple[ShellProfile, User]:
    settings = session.settings
    return find_profile(root, settings.shell), session_user(os.fspath(root), settings)


def _open_shell(root: Path, profile: ShellProfile, user: User, session: SessionRecord) -> None:
    settings = session.settings
    if settings.attended:
        profile = profile.attended()
    size = settings.size or DEFAULT_SIZE
    env = {**({} if settings.attended else UNATTENDED_ENV), **user.env, **settings.env}
    with ShellClient(root) as client:
        try:
            open_terminal(
                client,
                MAIN,
                profile,
                size=size,
                cwd=session.workspace,
                env=env,
                uid=user.uid,
                gid=user.gid,
                groups=user.groups,
            )
        except InitRefused as refusal:
            raise LaunchFailed(
                f"{profile.argv[0]}: {refusal}",
                hint="does it run in the base? another can be chosen: --shell=NAME",
            ) from refusal
