"""How a restore with a host program ends: the program is released, or restored as it was before.

What ran of the program is in the *aside*: the restore saved it there before it ended it.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from waypoint.engine.host_program import (
    Program,
    aside_program,
    boot_id,
    forget_aside,
    read_program,
    release_program,
    restore_program,
)
from waypoint.engine.work_directory import show_work_again
from waypoint.errors import EngineError
from waypoint.kernel.processes.process_tree import read_process, wait_until_free
from waypoint.model import SessionRecord
from waypoint.session.context import Context
from waypoint.session.operation import Operation

__all__ = ["note_processes", "release_program_of", "require_free", "require_terminals", "take_back_program"]

log = logging.getLogger(__name__)

RECOVERY_REAP_TIMEOUT_S = 5.0  # later commands try again
PASSING_REAP_TIMEOUT_S = 0.5  # for commands that came for something else
SILENT_S = 2.0  # a longer wait is reported


class _NotReaped(EngineError):
    """A process has ended, but its parent has not waited for it, so its pid is not free yet."""


def note_processes(context: Context, session: SessionRecord, started: dict[int, int]) -> None:
    """Record the processes of a program that was saved or restored, in the transaction that publishes."""
    context.catalogue.note_programs(session.id, started, boot_id())


def require_terminals(what: str, program: Program) -> None:
    """Raise EngineError if a terminal that the program used was closed since."""
    for terminal in program.terminals:
        if not terminal.is_there():
            raise EngineError(
                f"cannot restore {what!r}: its program used the terminal {terminal.path},"
                " which was closed since",
                hint="programs that outlive their terminal are started like this: setsid COMMAND </dev/null >LOG 2>&1 &",
            )


def require_free(what: str, pids: Sequence[int], timeout_s: float) -> None:
    """Wait until nobody has these pids any more. Raises EngineError."""
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
        f" ({parent.name if parent else 'gone'}), has not waited for it",
        hint="let the parent wait for it, or end the parent",
    )


def take_back_program(operation: Operation) -> None:
    """After a restore that failed: make files and program again as they were before it."""
    context, incarnation = operation.context, operation.incarnation
    platform = context.platform
    session = context.catalogue.session(operation.record.session_id)
    present = context.catalogue.branch(session.id, operation.record.branch)
    platform.program_cgroup(incarnation).remove()
    with suppress(EngineError) if operation.is_before_removal else nullcontext():
        show_work_again(platform, session, present.incarnation)
    kept = aside_program(platform, incarnation)
    if kept is not None:
        program, pids, images = kept
        known = context.catalogue.programs(session.id, boot_id())
        now = read_process(program.pid)
        if program.pid not in known:
            log.warning(
                "process %d (%s) is lost: it ended when the host restarted", program.pid, program.name
            )
        elif now is None or known[program.pid] != now.started or not now.is_alive:
            try:
                _bring_back(operation, session, program, pids, images)
            except _NotReaped:
                if not operation.is_before_removal:
                    raise  # a later command tries again
            except EngineError as error:
                # The restore was to end it anyway, and what keeps us from restoring it may never change.
                log.warning("process %d (%s) is lost: %s", program.pid, program.name, error)
    forget_aside(platform, incarnation)


def _bring_back(
    operation: Operation, session: SessionRecord, program: Program, pids: Sequence[int], images: Path
) -> None:
    context, incarnation = operation.context, operation.incarnation
    in_passing = operation.cut_off is not None and operation.cut_off.in_passing
    require_free(program.name, pids, PASSING_REAP_TIMEOUT_S if in_passing else RECOVERY_REAP_TIMEOUT_S)
    require_terminals(program.name, program)
    try:
        started = restore_program(context.platform, session, program, images, incarnation, program.name)
    except EngineError:
        context.platform.program_cgroup(incarnation).remove()
        raise
    note_processes(context, session, started)
    release_program(context.platform, program, incarnation)


def release_program_of(operation: Operation) -> None:
    """After a restore was published: move its program to the cgroup it was in before, and forget what was put aside."""
    context, incarnation = operation.context, operation.incarnation
    path = context.layout.checkpoint_program(operation.record.checkpoint or "")
    if path.exists():
        release_program(context.platform, read_program(path), incarnation)
    forget_aside(context.platform, incarnation)
