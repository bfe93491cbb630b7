"""Create a session, with a live branch ``main``."""

import os
import shutil
import time
from dataclasses import replace

from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import show_work
from waypoint.errors import AlreadyExists
from waypoint.model import Base, BranchRecord, OperationStatus, SessionRecord, SessionSettings
from waypoint.names import MAIN, parse_name
from waypoint.session.context import Context
from waypoint.session.creation.wall_choice import check_walls
from waypoint.session.lifecycle.branch_lock import hold_branch
from waypoint.session.lifecycle.branch_start import launch_branch
from waypoint.store.layout import new_id

__all__ = ["create_session"]


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
        directory = os.path.realpath(context.layout.work_directory(session_id))
        settings = replace(settings, work_dir=directory)
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
        hold_branch(context, session.id, MAIN, wait=True),
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


def _remove_links(context: Context, session_id: str) -> None:
    directory = context.layout.session(session_id)
    if directory.exists():
        shutil.rmtree(directory)
