"""Manual mode: a program that a person started on the host, in the work directory, is saved and restored with the files.

The branch and the program go back together or not at all. What runs of the program is saved before it is ended, in the
*aside*; a restore that fails or is cut off brings that back.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from waypoint.engine.host_program import (
    Program,
    aside_program,
    boot_id,
    find_program,
    forget_aside,
    put_aside,
    read_program,
    release_program,
    restore_program,
    save_program,
)
from waypoint.engine.incarnation import destroy
from waypoint.engine.work_directory import show_work, show_work_again
from waypoint.errors import EngineError, UsageError
from waypoint.kernel.criu.images import read_pids
from waypoint.kernel.processes.process_tree import (
    REAP_TIMEOUT_S,
    Process,
    end_tree,
    processes_using_pids,
    read_process,
    tree_of,
    wait_until_free,
)
from waypoint.model import (
    BranchRecord,
    CheckpointKind,
    CheckpointRecord,
    OperationRecord,
    OperationStatus,
    SessionRecord,
)
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch, require_publishable
from waypoint.session.lifecycle.branch_start import publish_restored, restore_as_branch
from waypoint.session.lifecycle.snapshot import begin_saving
from waypoint.store.layout import new_id

__all__ = ["program_of", "restore_with_program", "settle_program", "snapshot_with_program"]

log = logging.getLogger(__name__)

RECOVERY_REAP_TIMEOUT_S = 5.0  # later commands try again
PASSING_REAP_TIMEOUT_S = 0.5  # of those that have business elsewhere
SILENT_S = 2.0  # what takes longer is told


class _NotReaped(EngineError):
    """A process has ended, but its parent has not asked how, so that its pid is not free yet."""


def program_of(context: Context, checkpoint: CheckpointRecord) -> Program | None:
    """The program of the host that a checkpoint holds, if it holds one."""
    if checkpoint.kind is not CheckpointKind.PROCESS:
        return None
    return read_program(context.layout.checkpoint_program(checkpoint.id))


def snapshot_with_program(
    context: Context, session: SessionRecord, name: str | None, pid: int, *, wait: bool = True
) -> CheckpointRecord:
    """Save the files of ``main`` and a program that works in its work directory. Both go on."""
    if session.settings.work_dir is None:
        raise UsageError(
            f"session {session.id} has no work directory, in which a program could be saved with its files",
            hint="create one that has: waypoint init DIR --work-dir",
        )
    with hold_branch(context, session.id, MAIN, wait=wait) as lock_fd:
        saving = begin_saving(context, session, MAIN, name, lock_fd)
        show_work(context.platform, session, saving.branch.incarnation)
        process = find_program(session, pid)
        with (
            context.operation("snapshot", session.id, MAIN, checkpoint=saving.checkpoint_id) as operation,
            context.undoing(operation) as undo,
        ):
            saving.prepare(undo, operation.timeline)
            with saving.gate() as gate_fd:
                size = save_program(
                    context.platform,
                    session,
                    saving.branch,
                    saving.checkpoint_id,
                    process,
                    hold=(lock_fd, gate_fd),
                    timeline=operation.timeline,
                )
            checkpoint = saving.record(CheckpointKind.PROCESS, size)
            pids = read_pids(context.layout.images(checkpoint.id))
            found = [process for process in map(read_process, pids) if process is not None]
            with operation.timeline.step("publish"), context.catalogue.transaction():
                require_publishable(context, session.id, checkpoint.name)
                context.catalogue.add_checkpoint(checkpoint)
                context.catalogue.set_head(session.id, MAIN, checkpoint.id)
                _note(context, session, {process.pid: process.started for process in found})
                context.end(operation, OperationStatus.DONE)
    return checkpoint


def restore_with_program(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, *, wait: bool = True
) -> None:
    """Make ``main`` the files of the checkpoint, with a fresh shell, and bring its program back with its pids.

    What still runs of the program is ended. If anything fails, files and program are as before.
    """
    _ = context.platform  # mounts the pool if need be
    program = read_program(context.layout.checkpoint_program(checkpoint.id))
    images = context.layout.images(checkpoint.id)
    with hold_branch(context, session.id, MAIN, wait=wait) as lock_fd:
        old = context.catalogue.branch(session.id, MAIN)
        running = _running_part(context, session, checkpoint, read_pids(images))
        _require_terminals(checkpoint.name, program)
        incarnation = new_id()
        with context.operation(
            "restore",
            session.id,
            MAIN,
            incarnation=incarnation,
            old_incarnation=old.incarnation,
            checkpoint=checkpoint.id,
        ) as operation:
            with context.undoing(operation) as undo:
                undo.on_failure("remove the copy", lambda: destroy(context.platform, incarnation))
                branch = restore_as_branch(
                    context, session, checkpoint, MAIN, incarnation, old.created_at, operation
                )
                undo.on_failure(
                    "bring the program back",
                    lambda: _take_back(context, session, old, incarnation, RECOVERY_REAP_TIMEOUT_S),
                )
                with operation.timeline.step("end"):
                    _end(context, session, incarnation, running, lock_fd)
                    _require_free(checkpoint.name, read_pids(images), REAP_TIMEOUT_S)
                    _require_terminals(checkpoint.name, program)
                with operation.timeline.step("work"):
                    show_work(context.platform, session, incarnation)
                with operation.timeline.step("program"):
                    what = checkpoint.name
                    started = restore_program(context.platform, session, program, images, incarnation, what)
                publish_restored(context, branch, operation, also=lambda: _note(context, session, started))
            with operation.timeline.step("retire"):
                release_program(context.platform, program, incarnation)
                forget_aside(context.platform, incarnation)
                context.point_live_link(session.id, MAIN, incarnation)
                destroy(context.platform, old.incarnation)
            context.end(operation, OperationStatus.DONE)


def _note(context: Context, session: SessionRecord, started: dict[int, int]) -> None:
    context.catalogue.note_programs(session.id, started, boot_id())


def _running_part(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, pids: Sequence[int]
) -> list[Process]:
    """What still runs of the program that was saved, or of what became of it later: the roots of its trees.

    Raises EngineError, with nothing changed, if one of its pids is somebody else's by now.
    """
    known = context.catalogue.programs(session.id, boot_id())
    ours = [
        process
        for pid in pids
        if (process := read_process(pid)) is not None
        and process.is_alive
        and known.get(pid) == process.started
    ]
    trees = {member.pid for process in ours for member in tree_of(process.pid)}
    if os.getpid() in trees:
        raise UsageError(
            f"this command was started by the program that checkpoint {checkpoint.name!r} brings back, and would end"
            " with it",
            hint="restore it from outside of the program",
        )
    for holder in processes_using_pids(pids):
        if holder.is_alive and holder.pid not in trees:
            number = next(pid for pid in pids if pid in holder.ids())
            use = "has it" if number == holder.pid else "has it as the number of its group or session"
            raise EngineError(
                f"cannot restore checkpoint {checkpoint.name!r}: its program needs the process number {number}, and"
                f" process {holder.pid} ({holder.name}) {use}; that was not saved by this session",
                hint=f"end it if you may, or take the files alone: waypoint fork {session.id} {checkpoint.name}",
            )
    inner = {member.pid for process in ours for member in tree_of(process.pid)[1:]}
    return [process for process in ours if process.pid not in inner]


def _require_terminals(what: str, program: Program) -> None:
    for terminal in program.terminals:
        if not terminal.is_there():
            raise EngineError(
                f"cannot restore {what!r}: its program used the terminal {terminal.path},"
                " which was closed since",
                hint="programs that outlive their terminal are started like this: setsid COMMAND </dev/null >LOG 2>&1 &",
            )


def _end(
    context: Context, session: SessionRecord, incarnation: str, running: list[Process], lock_fd: int
) -> None:
    first = True
    for process in running:
        # One tree is kept for the way back; what else is left of the program are its orphans.
        if first and put_aside(context.platform, session, incarnation, process, (lock_fd,)):
            first = False
            continue
        log.warning("process %d (%s) is ended without a way back", process.pid, process.name)
        end_tree(process.pid)
        first = False


def _require_free(what: str, pids: Sequence[int], timeout_s: float) -> None:
    left = wait_until_free(pids, min(timeout_s, SILENT_S))
    if left is not None and not left.is_alive and timeout_s > SILENT_S:
        log.warning("waiting for process %d to notice that its child %d has ended", left.parent, left.pid)
        left = wait_until_free(pids, timeout_s - SILENT_S)
    if left is None:
        return
    if left.is_alive:
        raise EngineError(f"cannot restore {what!r}: process number {left.pid} is in use ({left.name})")
    parent = read_process(left.parent)
    raise _NotReaped(
        f"cannot restore {what!r}: process {left.pid} has ended, but its parent, process {left.parent}"
        f" ({parent.name if parent else 'gone'}), does not ask how",
        hint="let the parent wait for it, or end the parent",
    )


def _take_back(
    context: Context,
    session: SessionRecord,
    old: BranchRecord,
    incarnation: str,
    patience_s: float,
    *,
    is_going: bool = False,
) -> None:
    """A restore did not succeed: let files and program be as they were before it.

    ``is_going``: the session is about to be removed, so what cannot be as before keeps nobody.
    """
    platform = context.platform
    platform.program_cgroup(incarnation).remove()
    with suppress(EngineError) if is_going else nullcontext():
        show_work_again(platform, session, old.incarnation)
    kept = aside_program(platform, incarnation)
    if kept is not None:
        program, pids, images = kept
        known = context.catalogue.programs(session.id, boot_id())
        now = read_process(program.pid)
        if program.pid not in known:
            log.warning("process %d (%s) is lost: it ended with the host", program.pid, program.name)
        elif now is None or known[program.pid] != now.started or not now.is_alive:
            try:
                _bring_back(context, session, program, pids, images, incarnation, patience_s)
            except _NotReaped:
                if not is_going:
                    raise  # a later command tries again
            except EngineError as error:
                # It was to be ended anyway, and what keeps it from coming back may never change.
                log.warning("process %d (%s) is lost: %s", program.pid, program.name, error)
    forget_aside(platform, incarnation)


def _bring_back(
    context: Context,
    session: SessionRecord,
    program: Program,
    pids: Sequence[int],
    images: Path,
    incarnation: str,
    patience_s: float,
) -> None:
    _require_free(program.name, pids, patience_s)
    _require_terminals(program.name, program)
    try:
        started = restore_program(context.platform, session, program, images, incarnation, program.name)
    except EngineError:
        context.platform.program_cgroup(incarnation).remove()
        raise
    _note(context, session, started)
    release_program(context.platform, program, incarnation)


def settle_program(
    context: Context, operation: OperationRecord, *, is_going: bool = False, in_passing: bool = False
) -> None:
    """A restore with a program was cut off: finish it if it was published, else take it back.

    ``in_passing``: for one who has business elsewhere, and does not wait long.
    """
    platform, incarnation = context.platform, operation.incarnation or ""
    session = context.catalogue.session(operation.session_id)
    if operation.status is not OperationStatus.PUBLISHED:
        old = context.catalogue.branch(operation.session_id, operation.branch)
        patience_s = PASSING_REAP_TIMEOUT_S if in_passing else RECOVERY_REAP_TIMEOUT_S
        _take_back(context, session, old, incarnation, patience_s, is_going=is_going)
        return
    path = context.layout.checkpoint_program(operation.checkpoint or "")
    if path.exists():
        release_program(platform, read_program(path), incarnation)
    forget_aside(platform, incarnation)
