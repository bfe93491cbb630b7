"""Explain who works on a session or uses its files, when it cannot be removed."""

import os

from waypoint.kernel.in_use import lock_holders, process_name, processes_below
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.model import SessionRecord
from waypoint.session.context import Context

__all__ = ["explain_session_in_use"]

_FORCE = (
    "--force ends the commands that run, with all processes of the session, waits for a snapshot or restore\n"
    "under way, and removes everything; programs of the host that only have files of it open are left alone"
)


def explain_session_in_use(context: Context, session: SessionRecord) -> str:
    """What holds the session, one line each, what --force will do about it, and how to ask for that."""
    held = [*_at_work(context, session.id), *_users_of_files(context, session)]
    mounted = _mounted(context, session)
    lines = ["held by:", *(held or ["  nobody that can be seen from here"])]
    if mounted:
        lines += ["mounted:", *mounted]
    name = session.name or session.id
    return "\n".join([*lines, _FORCE, f"Try: sudo waypoint cleanup {name} --force"])


def _at_work(context: Context, session_id: str) -> list[str]:
    """Those who hold locks of its branches: commands that run, operations in progress."""
    lines = []
    for branch in context.catalogue.branches(session_id):
        locks = [(context.branch_lock(session_id, branch.name), f"works on branch {branch.name!r}")]
        for lock in context.terminal_locks(session_id, branch.name):
            terminal = lock.name.rpartition(":")[2]
            locks.append((lock, f"runs a command in branch {branch.name!r}, terminal {terminal!r}"))
        for lock, what in locks:
            for pid in lock_holders(lock):
                if pid != os.getpid():
                    lines.append(f"  pid {pid} ({process_name(pid)}) {what}")
    return lines


def _users_of_files(context: Context, session: SessionRecord) -> list[str]:
    """Processes of the host that use its directories; its own have another root and are not listed."""
    paths = [
        os.fspath(context.layout.mount(branch.incarnation))
        for branch in context.catalogue.branches(session.id)
    ]
    paths.append(os.fspath(context.layout.session(session.id)))
    work_dir = session.settings.work_dir
    if work_dir is not None:
        paths.append(work_dir)
    return [f"  pid {holder.pid} ({holder.name}) {holder.what}" for holder in processes_below(paths)]


def _mounted(context: Context, session: SessionRecord) -> list[str]:
    paths = {
        os.fspath(context.layout.mount(branch.incarnation)): f"branch {branch.name!r}"
        for branch in context.catalogue.branches(session.id)
    }
    work_dir = session.settings.work_dir
    if work_dir is not None:
        paths[work_dir] = "work directory"
    return [
        f"  {mount.path} ({name})"
        for mount in read_mounts()
        for path, name in paths.items()
        if mount.path == path or mount.path.startswith(f"{path}/")
    ]
