"""Manual mode: a program that a person started on the host, in the work directory, is saved and restored with the files.

The branch and the program are restored together or not at all. What runs of the program is saved in the *aside* before
it is ended; a restore that fails or is cut off restores that.
"""

import logging
import os
from collections.abc import Sequence

from waypoint.engine.host_program import (
    Program,
    boot_id,
    find_program,
    put_aside,
    read_program,
    restore_program,
    save_program,
)
from waypoint.engine.work_directory import show_work
from waypoint.errors import EngineError, UsageError
from waypoint.kernel.criu.images import read_pids
from waypoint.kernel.processes.process_tree import (
    REAP_TIMEOUT_S,
    Process,
    end_tree,
    processes_using_pids,
    read_process,
    tree_of,
)
from waypoint.model import (
    CheckpointKind,
    CheckpointRecord,
    SessionRecord,
)
from waypoint.names import MAIN
from waypoint.session.context import Context
from waypoint.session.lifecycle.branch_lock import hold_branch, require_publishable
from waypoint.session.lifecycle.branch_start import begin_replacement, publish_restored, restore_as_branch
from waypoint.session.lifecycle.endings import RESTORE, SNAPSHOT
from waypoint.session.lifecycle.host_program_endings import note_processes, require_free, require_terminals
from waypoint.session.lifecycle.snapshot import begin_saving
from waypoint.session.operation import begin_operation
from waypoint.store.layout import new_id

__all__ = ["program_of", "restore_with_program", "snapshot_with_program"]

log = logging.getLogger(__name__)


def program_of(context: Context, checkpoint: CheckpointRecord) -> Program:
    """The host program that a ``PROCESS`` checkpoint holds."""
    return read_program(context.layout.checkpoint_program(checkpoint.id))


def snapshot_with_program(
    context: Context, session: SessionRecord, name: str | None, pid: int, *, wait: bool = True
) -> CheckpointRecord:
    """Save the files of ``main`` and a program that works in its work directory. Both keep running."""
    if session.settings.work_dir is None:
        raise UsageError(
            f"session {session.id} has no work directory, so no program can be saved with its files",
            hint="create a session with one: waypoint init DIR --work-dir",
        )
    with hold_branch(context, session.id, MAIN, wait=wait) as lock_fd:
        saving = begin_saving(context, session, MAIN, name, lock_fd)
        show_work(context.platform, session, saving.branch.incarnation)
        process = find_program(session, pid)
        with begin_operation(
            context, SNAPSHOT, session.id, MAIN, checkpoint=saving.checkpoint_id
        ) as operation:
            saving.prepare(operation.timeline)
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
                note_processes(context, session, {process.pid: process.started for process in found})
                operation.publish()
    return checkpoint


def restore_with_program(
    context: Context, session: SessionRecord, checkpoint: CheckpointRecord, *, wait: bool = True
) -> None:
    """Restore the files of the checkpoint to ``main``, with a fresh shell, and its program with its pids.

    What still runs of the program is ended. If anything fails, files and program are as before.
    """
    _ = context.platform  # mounts the pool if need be
    program = read_program(context.layout.checkpoint_program(checkpoint.id))
    images = context.layout.images(checkpoint.id)
    with hold_branch(context, session.id, MAIN, wait=wait) as lock_fd:
        old = context.catalogue.branch(session.id, MAIN)
        running = _running_part(context, session, checkpoint, read_pids(images))
        require_terminals(checkpoint.name, program)
        with begin_replacement(context, RESTORE, old, new_id(), checkpoint=checkpoint) as operation:
            incarnation, what = operation.incarnation, checkpoint.name
            branch = restore_as_branch(operation, session, checkpoint, old.created_at)
            with operation.timeline.step("end"):
                _end(context, session, incarnation, running, lock_fd)
                require_free(what, read_pids(images), REAP_TIMEOUT_S)
                require_terminals(what, program)
            with operation.timeline.step("work"):
                show_work(context.platform, session, incarnation)
            with operation.timeline.step("program"):
                started = restore_program(context.platform, session, program, images, incarnation, what)
            publish_restored(operation, branch, also=lambda: note_processes(context, session, started))


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
            f"this command was started by the program that checkpoint {checkpoint.name!r} restores, and would end"
            " with it",
            hint="run the command outside of the program",
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


def _end(
    context: Context, session: SessionRecord, incarnation: str, running: list[Process], lock_fd: int
) -> None:
    first = True
    for process in running:
        # One tree is put aside, to be restored if need be; what else is left of the program are its orphans.
        if first and put_aside(context.platform, session, incarnation, process, (lock_fd,)):
            first = False
            continue
        log.warning("process %d (%s) is ended and cannot be restored", process.pid, process.name)
        end_tree(process.pid)
        first = False
