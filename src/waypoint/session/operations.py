"""The operations: create, snapshot, restore, fork, destroy, cleanup.

Each takes the lock of its branch, records itself as begun, builds something new beside what exists, and
publishes it in one transaction at the end. What fails is undone and the branch runs on; what dies is
found and settled by :mod:`waypoint.session.recovery`.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, contextmanager
from pathlib import Path

from waypoint.engine.checkpoint import discard_checkpoint, prepare, resume_input, save
from waypoint.engine.incarnation import destroy
from waypoint.engine.launch import launch
from waypoint.engine.restore import revive
from waypoint.errors import (
    AlreadyExists,
    Broken,
    ForkIncomplete,
    LaunchFailed,
    NotFound,
    UsageError,
    WaypointError,
)
from waypoint.model import (
    Base,
    BranchRecord,
    CheckpointRecord,
    OperationStatus,
    SessionRecord,
    SessionSettings,
)
from waypoint.names import MAIN, parse_name
from waypoint.session.context import Context, Operation
from waypoint.session.recovery import recover_branch
from waypoint.session.removal import remove_branch, remove_session
from waypoint.shell.client import InitRefused, ShellClient
from waypoint.shell.profile import UNATTENDED_ENV, ShellProfile
from waypoint.shell.selection import find_profile
from waypoint.shell.terminal import DEFAULT_SIZE, open_terminal
from waypoint.store.layout import new_id
from waypoint.store.lock import locked

__all__ = [
    "check_new_names",
    "cleanup_session",
    "create_session",
    "default_branch_names",
    "destroy_branch",
    "fork_checkpoint",
    "restore_branch",
    "snapshot_branch",
]

FORKS_AT_ONCE = 8


@contextmanager
def _holding(context: Context, session_id: str, branch: str, *, wait: bool) -> Iterator[int]:
    """Hold the branch lock; whatever a dead holder left undone is settled first."""
    what = f"branch {branch!r} of session {session_id}"
    with locked(context.branch_lock(session_id, branch), what=what, wait=wait) as fd:
        recover_branch(context, session_id, branch)
        yield fd


def create_session(
    context: Context,
    base: Base,
    *,
    workspace: str,
    name: str | None,
    settings: SessionSettings,
) -> SessionRecord:
    """Make a session with a running branch ``main`` whose shell is ready."""
    if name is not None:
        parse_name("session", name)
        if any(session.name == name for session in context.catalogue.sessions()):
            raise AlreadyExists(
                "session", name, hint=f"choose another name, or remove that session: waypoint cleanup {name}"
            )
    profile = find_profile(base.path, settings.shell)
    session = SessionRecord(
        id=new_id(8),
        name=name,
        base=base,
        workspace=workspace,
        created_at=time.time(),
        is_open=True,
        settings=settings,
    )
    incarnation = new_id()
    with (
        _holding(context, session.id, MAIN, wait=True),
        context.operation("create", session.id, MAIN, incarnation=incarnation) as operation,
        context.undoing(operation) as undo,
    ):
        undo.on_failure("remove the locks", lambda: context.remove_locks(session.id, MAIN))
        undo.on_failure("remove the branch", lambda: destroy(context.platform, incarnation))
        pid = launch(context.platform, base, incarnation, operation.timeline, allow_self=settings.allow_self)
        with operation.timeline.step("shell"):
            _open_shell(context.layout.mount(incarnation), profile, workspace, settings)
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
                context.end(operation, OperationStatus.DONE)
    return session


def _open_shell(root: Path, profile: ShellProfile, workspace: str, settings: SessionSettings) -> None:
    if settings.attended:
        profile = profile.attended()
    size = settings.size or DEFAULT_SIZE
    env = {**({} if settings.attended else UNATTENDED_ENV), **settings.env}
    with ShellClient(root) as client:
        try:
            open_terminal(client, MAIN, profile, size=size, cwd=workspace, env=env)
        except InitRefused as refusal:
            raise LaunchFailed(
                f"{profile.argv[0]}: {refusal}",
                hint="does it run in the base? another can be chosen: --shell=NAME",
            ) from refusal


def snapshot_branch(
    context: Context, session: SessionRecord, branch_name: str, name: str | None, *, wait: bool = True
) -> CheckpointRecord:
    """Save the branch as a checkpoint. The branch runs on, whether this succeeds or not."""
    if name is not None:
        parse_name("checkpoint", name)
    with _holding(context, session.id, branch_name, wait=wait) as lock_fd:
        branch = _running_branch(context, session, branch_name)
        name = name or _default_name(context, session.id, "checkpoint")
        if context.catalogue.has_name(session.id, name):
            raise AlreadyExists("checkpoint or branch", name, hint="choose another name")
        checkpoint_id = new_id()
        with (
            context.operation("snapshot", session.id, branch_name, checkpoint=checkpoint_id) as operation,
            context.undoing(operation) as undo,
        ):
            undo.on_failure("drop the draft", lambda: discard_checkpoint(context.platform, checkpoint_id))
            undo.on_failure("give typed input back", lambda: resume_input(branch))
            root = context.layout.mount(branch.incarnation)
            prepare(context.platform, branch, checkpoint_id, operation.timeline)
            with locked(context.gate_lock(session.id, branch_name), what=branch_name) as gate_fd:
                memory_bytes = save(
                    context.platform,
                    session.base,
                    branch,
                    checkpoint_id,
                    quiesce=lambda: _quiesce(root),
                    hold=(lock_fd, gate_fd),
                    timeline=operation.timeline,
                )
            with operation.timeline.step("publish"):
                checkpoint = CheckpointRecord(
                    id=checkpoint_id,
                    session_id=session.id,
                    name=name,
                    parent=branch.head,
                    branch=branch_name,
                    created_at=time.time(),
                    memory_bytes=memory_bytes,
                )
                with context.catalogue.transaction():
                    _require_publishable(context, session.id, name)
                    context.catalogue.add_checkpoint(checkpoint)
                    context.catalogue.set_head(session.id, branch_name, checkpoint_id)
                    context.end(operation, OperationStatus.DONE)
    return checkpoint


def _quiesce(root: Path) -> None:
    with ShellClient(root) as client:
        client.quiesce()


def restore_branch(
    context: Context, session: SessionRecord, branch_name: str, checkpoint_name: str, *, wait: bool = True
) -> CheckpointRecord:
    """Make the branch that checkpoint again.

    The checkpoint comes to life beside the branch first; the branch is given up only when it answers.
    """
    checkpoint = context.catalogue.checkpoint(session.id, parse_name("checkpoint", checkpoint_name))
    with _holding(context, session.id, branch_name, wait=wait):
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
                branch = _revive(
                    context, session, checkpoint, branch_name, incarnation, old.created_at, operation
                )
                with (
                    operation.timeline.step("publish"),
                    locked(context.gate_lock(session.id, branch_name), what=branch_name),
                    context.catalogue.transaction(),
                ):
                    _require_publishable(context, session.id)
                    context.catalogue.put_branch(branch)
                    context.end(operation, OperationStatus.PUBLISHED)
            with operation.timeline.step("retire"):
                context.point_live_link(session.id, branch_name, incarnation)
                destroy(context.platform, old.incarnation)
            context.end(operation, OperationStatus.DONE)
    return checkpoint


def check_new_names(context: Context, session_id: str, names: Sequence[str]) -> None:
    """Refuse names that new branches cannot have, before anything is made for them."""
    if len(set(names)) != len(names):
        raise UsageError("the names of new branches must differ", hint="give each branch a name of its own")
    for name in names:
        parse_name("branch", name)
        if context.catalogue.has_name(session_id, name):
            raise AlreadyExists("branch or checkpoint", name, hint="choose another name")


def fork_checkpoint(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, names: Sequence[str]
) -> list[BranchRecord]:
    """Bring the checkpoint to life once for each name, at the same time, beside all other branches.

    Each branch is made whole or not at all. If some fail, ForkIncomplete names them; the others run.
    """
    check_new_names(context, session.id, names)
    _ = context.platform  # found once, not by every thread
    began = time.time()
    with ThreadPoolExecutor(min(len(names), FORKS_AT_ONCE)) as pool:
        pending = {
            # They end in any order; a microsecond each keeps them listed in the order of their names.
            name: pool.submit(_fork_one, context, session, checkpoint, name, began + number / 1_000_000)
            for number, name in enumerate(names)
        }
        try:
            wait_for_all(pending.values())
        except BaseException:  # a signal: those under way are finished, the rest is not begun
            pool.shutdown(cancel_futures=True)
            raise
    made: list[BranchRecord] = []
    errors: dict[str, WaypointError] = {}
    for name, future in pending.items():
        try:
            made.append(future.result())
        except WaypointError as error:
            errors[name] = error
    if len(errors) == len(names) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise ForkIncomplete([branch.name for branch in made], errors)
    return made


def _fork_one(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, name: str, created_at: float
) -> BranchRecord:
    incarnation = new_id()
    with ExitStack() as stack:
        stack.enter_context(_holding(context, session.id, name, wait=True))
        _require_publishable(context, session.id, name)  # another process may have made it while we waited
        operation = stack.enter_context(
            context.operation("fork", session.id, name, incarnation=incarnation, checkpoint=checkpoint.id)
        )
        undo = stack.enter_context(context.undoing(operation))
        undo.on_failure("remove the locks", lambda: context.remove_locks(session.id, name))
        undo.on_failure("remove the branch", lambda: destroy(context.platform, incarnation))
        branch = _revive(context, session, checkpoint, name, incarnation, created_at, operation)
        with operation.timeline.step("publish"):
            undo.on_failure("remove the link", lambda: _unlink(context.layout.live(session.id, name)))
            context.point_live_link(session.id, name, incarnation)
            with context.catalogue.transaction():
                _require_publishable(context, session.id, name)
                context.catalogue.put_branch(branch)
                context.end(operation, OperationStatus.DONE)
    return branch


def _require_publishable(context: Context, session_id: str, name: str | None = None) -> None:
    """To be asked in the transaction that publishes: much may have happened since the operation began."""
    if not context.catalogue.session(session_id).is_open:
        raise NotFound("session", session_id, hint="it is being removed: waypoint list")
    if name is not None and context.catalogue.has_name(session_id, name):
        raise AlreadyExists("branch or checkpoint", name, hint="choose another name")


def _revive(
    context: Context,
    session: SessionRecord,
    checkpoint: CheckpointRecord,
    branch_name: str,
    incarnation: str,
    created_at: float,
    operation: Operation,
) -> BranchRecord:
    pid = revive(context.platform, session.base, checkpoint, incarnation, operation.timeline)
    with operation.timeline.step("answer"), ShellClient(context.layout.mount(incarnation)) as client:
        client.ping()
    return BranchRecord(
        session_id=session.id,
        name=branch_name,
        incarnation=incarnation,
        init_pid=pid,
        head=checkpoint.id,
        created_at=created_at,
    )


def destroy_branch(context: Context, session: SessionRecord, branch_name: str, *, wait: bool = True) -> None:
    """End a branch and remove its unsaved state; its checkpoints stay."""
    if branch_name == MAIN:
        raise UsageError(
            "the branch 'main' cannot be destroyed",
            hint=f"remove the whole session: waypoint cleanup {session.id}",
        )
    with _holding(context, session.id, branch_name, wait=wait):
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
            with context.operation("cleanup", session.id, "", removes=True) as operation:
                remove_session(context, session.id, operation.timeline)
                context.end(operation, OperationStatus.DONE)
        context.branch_lock(session.id, "").unlink(missing_ok=True)


def _running_branch(context: Context, session: SessionRecord, name: str) -> BranchRecord:
    branch = context.catalogue.branch(session.id, name)
    if not context.is_running(branch):
        raise Broken(
            f"branch {name!r} of session {session.id} is not running",
            hint=f"bring a checkpoint back: waypoint restore {session.id}:{name} NAME",
        )
    return branch


def _default_name(context: Context, session_id: str, kind: str) -> str:
    while True:
        name = f"{kind}-{context.catalogue.next_number(session_id)}"
        if not context.catalogue.has_name(session_id, name):
            return name


def default_branch_names(context: Context, session_id: str, count: int) -> list[str]:
    """Names for new branches that nobody has asked for by name."""
    return [_default_name(context, session_id, "fork") for _ in range(count)]


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_links(context: Context, session_id: str) -> None:
    directory = context.layout.session(session_id)
    if directory.exists():
        shutil.rmtree(directory)
