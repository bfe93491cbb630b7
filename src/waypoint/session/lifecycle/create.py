"""Create a session, with a live branch ``main``."""

import os
import time
from dataclasses import replace

from waypoint.errors import AlreadyExists
from waypoint.model import Base, BranchRecord, OperationStatus, SessionRecord, SessionSettings
from waypoint.names import MAIN, parse_name
from waypoint.session.context import Context
from waypoint.session.creation.wall_choice import check_walls
from waypoint.session.lifecycle.branch_lock import hold_branch
from waypoint.session.lifecycle.branch_start import launch_branch
from waypoint.session.lifecycle.endings import CREATE
from waypoint.session.operation import begin_operation
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

    With ``has_work_dir``, and no path for it in ``settings``, its work directory is in the state directory.
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
    with (
        hold_branch(context, session.id, MAIN, wait=True),
        begin_operation(context, CREATE, session.id, MAIN, incarnation=new_id()) as operation,
    ):
        pid = launch_branch(operation, session)
        with operation.timeline.step("publish"):
            branch = BranchRecord(
                session_id=session.id,
                name=MAIN,
                incarnation=operation.incarnation,
                init_pid=pid,
                head=None,
                created_at=session.created_at,
            )
            context.point_live_link(session.id, MAIN, operation.incarnation)
            with context.catalogue.transaction():
                context.catalogue.add_session(session)
                context.catalogue.put_branch(branch)
                # The work directory is shown after this: recovery knows of it from the catalogue only.
                is_whole = session.settings.work_dir is None
                operation.publish(OperationStatus.DONE if is_whole else OperationStatus.PUBLISHED)
    return session
