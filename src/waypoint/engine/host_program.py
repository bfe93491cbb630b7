"""A host program that works in a session's work directory: save it with the files, restore it.

It runs in the host's namespaces, so it is restored with the pids it had, which must be free, and there is never more
than one of it. docs/checkpoints.md, "Manual mode", says what users may expect.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from waypoint.engine.checkpoint import capture_files
from waypoint.engine.limits import BranchLimits
from waypoint.engine.platform import Platform
from waypoint.errors import DumpFailed, NotFound, RestoreFailed, UsageError
from waypoint.kernel.cgroup.freezer import Freezer
from waypoint.kernel.cgroup.group import Cgroup, find_cgroup2, remove_group
from waypoint.kernel.criu.foreign import dump_foreign_tree, restore_foreign_tree
from waypoint.kernel.criu.images import read_pids, repair_foreign_terminals
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.criu.outer_terminals import OuterTerminal, outer_terminals
from waypoint.kernel.processes.process_tree import Process, read_process, tree_of
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.log import Timeline
from waypoint.model import BranchRecord, SessionRecord
from waypoint.store.layout import new_id

__all__ = [
    "Program",
    "aside_program",
    "boot_id",
    "find_program",
    "forget_aside",
    "put_aside",
    "read_program",
    "release_program",
    "restore_program",
    "save_program",
]

_OF_A_SESSION = re.compile(r"/waypoint-[0-9a-f]{8}\.")
_BAD_SIZE = "has bad size"
_COMPLETE = "inventory.img"  # the last file that CRIU writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A saved program: its first process, its name, its cgroup on the host, its terminals."""

    pid: int
    name: str
    cgroup: str
    terminals: tuple[OuterTerminal, ...]

    @classmethod
    def of(cls, process: Process) -> "Program":
        return cls(
            pid=process.pid,
            name=process.name,
            cgroup=_cgroup_of(process.pid),
            terminals=tuple(outer_terminals(tree_of(process.pid))),
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @contextmanager
    def opened_terminals(self) -> Iterator[dict[str, int]]:
        with ExitStack() as stack:
            opened = {}
            for terminal in self.terminals:
                opened[terminal.key] = fd = terminal.open()
                stack.callback(os.close, fd)
            yield opened


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def find_program(session: SessionRecord, pid: int) -> Process:
    """The process with this pid, if it can be saved with the session's files. Else raises the reason why not."""
    what = f"process {pid}"
    hint = "give the pid of a program that you started in the work directory"
    process = read_process(pid) if pid > 0 else None
    if process is None:
        raise NotFound("process", pid, hint=hint)
    what = f"{what} ({process.name})"
    if not process.is_alive:
        raise UsageError(f"{what} has ended", hint=hint)
    if process.is_of_the_kernel:
        raise UsageError(f"{what} is a thread of the kernel", hint=hint)
    if str(pid) not in os.listdir("/proc"):  # a thread has a directory there, which is not listed
        raise UsageError(f"{what} is only a thread of a process", hint="give the pid of the process")
    if pid in _self_and_ancestors():
        raise UsageError(
            f"{what} is this very command, or what started it, so this command cannot stop it", hint=hint
        )
    if _OF_A_SESSION.search(_cgroup_of(pid)):
        raise UsageError(
            f"{what} runs inside a session", hint="it is saved with its branch: leave out the pid"
        )
    for kind in ("pid", "mnt", "user", "net"):
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
            raise UsageError(f"{what} has a {kind} namespace of its own, as in a container", hint=hint)
    _require_in_work_directory(session, process, what)
    if process.session == 0:
        # CRIU refuses it, because it could not restore the program into that session.
        raise UsageError(
            f"{what} is in the process session (setsid) of its ancestors, whose leader cannot be seen from here",
            hint="start it in a session of its own: setsid COMMAND </dev/null >LOG 2>&1 &",
        )
    return process


def _require_in_work_directory(session: SessionRecord, process: Process, what: str) -> None:
    work = session.settings.work_dir or ""
    where, device = os.readlink(f"/proc/{process.pid}/cwd"), os.stat(f"/proc/{process.pid}/cwd").st_dev
    if device == os.stat(work).st_dev and (where == work or where.startswith(f"{work}/")):
        return
    number = f"{os.major(device)}:{os.minor(device)}"
    if all(entry.device != number for entry in read_mounts()):
        raise UsageError(
            f"{what} works in files that {work} does not show any more: 'main' was restored or resumed since",
            hint="start it there again",
        )
    raise UsageError(
        f"{what} is not in the work directory {work}, but in {where}",
        hint=f"start it there: cd {work}",
    )


def _self_and_ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        process = read_process(pid)
        pid = 0 if process is None else process.parent


def save_program(
    platform: Platform,
    session: SessionRecord,
    branch: BranchRecord,
    checkpoint_id: str,
    process: Process,
    *,
    hold: Sequence[int],
    timeline: Timeline,
) -> int:
    """Write the files of ``branch`` and the process with its children as ``checkpoint_id``; return the images' size.

    Both are stopped meanwhile, and run when this returns or raises. On failure parts of the checkpoint may exist.
    """
    layout = platform.layout
    images = layout.images(checkpoint_id)
    limits = BranchLimits(platform, session.settings.limits, branch.incarnation)
    program = Program.of(process)
    program.write(layout.checkpoint_program(checkpoint_id))

    def capture() -> None:
        with Freezer(platform.cgroup(branch.incarnation), hold) as freezer:
            freezer.begin()
            freezer.wait()
            capture_files(platform, branch, checkpoint_id, limits, timeline)

    try:
        with timeline.step("dump"), platform.criu_work(session.id, checkpoint_id) as work:
            statistics = dump_foreign_tree(
                platform.criu,
                process.pid,
                images=images,
                work=work,
                leave_running=True,
                external=[terminal.key for terminal in program.terminals],
                hold=hold,
                on_saved=capture,
            )
    except CriuFailed as error:
        what = f"process {process.pid} ({process.name})"
        raise DumpFailed(what, error.reason, error.log_file) from error
    timeline.note("pause", statistics.pause_ms)
    return sum(entry.stat().st_size for entry in os.scandir(images))


def read_program(path: Path) -> Program:
    fields = json.loads(path.read_text())
    terminals = tuple(OuterTerminal(**terminal) for terminal in fields.pop("terminals"))
    return Program(**fields, terminals=terminals)


def put_aside(
    platform: Platform, session: SessionRecord, incarnation: str, process: Process, hold: Sequence[int]
) -> bool:
    """Save a program and end it, so that it can be brought back if the restore fails. Return whether it was saved.

    If not, it keeps running.
    """
    directory = platform.layout.program_aside(incarnation)
    (directory / "images").mkdir(parents=True)
    program = Program.of(process)
    program.write(directory / "program.json")
    try:
        with platform.criu_work(session.id, f"{incarnation}.aside") as work:
            dump_foreign_tree(
                platform.criu,
                process.pid,
                images=directory / "images",
                work=work,
                leave_running=False,
                external=[terminal.key for terminal in program.terminals],
                hold=hold,
            )
    except CriuFailed:
        forget_aside(platform, incarnation)
        return False
    return True


def aside_program(platform: Platform, incarnation: str) -> tuple[Program, list[int], Path] | None:
    """A program that was put aside, the pids it had, and its images; None if none was saved completely."""
    directory = platform.layout.program_aside(incarnation)
    if not (directory / "images" / _COMPLETE).exists():
        return None
    images = directory / "images"
    repair_foreign_terminals(images)  # whoever saved it may have been killed before doing so
    return read_program(directory / "program.json"), read_pids(images), images


def forget_aside(platform: Platform, incarnation: str) -> None:
    """Remove what was saved of a program that was put aside. Done already is fine."""
    directory = platform.layout.program_aside(incarnation)
    if directory.exists():
        shutil.rmtree(directory)


def restore_program(
    platform: Platform,
    session: SessionRecord,
    program: Program,
    images: Path,
    incarnation: str,
    what: str,
) -> dict[int, int]:
    """Restore a program, in a cgroup of the incarnation; return when each of its processes was started, by pid.

    Its pids are free. On failure parts of it may exist in that cgroup; the error names ``what``.
    """
    cgroup = platform.program_cgroup(incarnation)
    cgroup.create()
    try:
        with (
            program.opened_terminals() as terminals,
            platform.criu_work(session.id, f"{incarnation}.{new_id()}") as work,
        ):
            restore_foreign_tree(
                platform.criu, images=images, work=work, cgroup=cgroup.path, inherited=terminals
            )
    except CriuFailed as error:
        hint = ""
        if _BAD_SIZE in error.reason:
            hint = "a file outside of the work directory that it has open has changed since: put it back as it was"
        raise RestoreFailed(what, error.reason, error.log_file, hint=hint) from error
    return {process.pid: process.started for process in tree_of(program.pid)}


def release_program(platform: Platform, program: Program, incarnation: str) -> None:
    """Move a restored program from its cgroup to the one it was in before, or to ours. Done already is fine."""
    cgroup = platform.program_cgroup(incarnation)
    if not cgroup.path.exists():
        return
    try:
        _move_all(cgroup, Path(program.cgroup))
    except OSError:  # it was removed, or can no longer hold processes
        _move_all(cgroup, Path(_cgroup_of(os.getpid())))
    remove_group(cgroup.path)


def _move_all(cgroup: Cgroup, home: Path) -> None:
    while members := cgroup.members():
        for pid in members:
            with suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(str(pid))
        if members == cgroup.members() and not any(map(_is_alive, members)):
            return  # the dead cannot be moved; the last of them leaves by itself


def _is_alive(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.is_alive


def _cgroup_of(pid: int) -> str:
    """The directory of a process's cgroup in the tree of version 2; empty if it has none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return ""
        raise
    for line in lines:
        if line.startswith("0::"):
            return os.fspath(find_cgroup2() / line[3:].lstrip("/"))
    return ""
