"""A process with all its descendants, as the kernel shows them now; and how to kill such a tree completely."""

import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "REAP_TIMEOUT_S",
    "Process",
    "end_tree",
    "find_holders",
    "holder_of_socket",
    "pids_inside",
    "processes_using_pids",
    "program_of",
    "read_process",
    "shared_terminal",
    "tree_of",
    "wait_until_free",
]

DEATH_TIMEOUT_S = 10.0
REAP_TIMEOUT_S = 30.0  # process 1 of some hosts takes its time
REAP_POLL_S = 0.02  # nothing announces that a parent has reaped
_ROUNDS_MAX = 100
_PF_KTHREAD = 0x00200000


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """``started`` tells it from a later one with the same pid. ``terminal`` is the device that controls it, or 0."""

    pid: int
    parent: int
    group: int
    session: int
    terminal: int
    name: str
    state: str
    started: int
    is_of_the_kernel: bool

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"

    def ids(self) -> set[int]:
        """The pids that no new process can get because of it."""
        return {self.pid, self.group, self.session}


def read_process(pid: int) -> Process | None:
    """The process that has this pid, even if it is dead but not reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        terminal=_device(int(fields[4])),
        name=name,
        state=fields[0],
        started=int(fields[19]),
        is_of_the_kernel=bool(int(fields[6]) & _PF_KTHREAD),
    )


def _device(number: int) -> int:
    """A device number from the kernel's encoding: 12 bits of major between the two parts of the minor."""
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00))


def tree_of(pid: int) -> list[Process]:
    """The process and its descendants that are alive, parents first."""
    children: dict[int, list[Process]] = {}
    root = None
    for process in filter(lambda process: process.is_alive, _all_processes()):
        children.setdefault(process.parent, []).append(process)
        root = process if process.pid == pid else root
    found = [] if root is None else [root]
    for process in found:  # the list grows meanwhile
        found += children.get(process.pid, [])
    return found


def shared_terminal(tree: Sequence[Process]) -> Process | None:
    """A process with a terminal whose other end is not in the tree, so that it cannot be saved with it."""
    open_files = {process.pid: _open_files(process.pid) for process in tree}
    if any(
        link == "/dev/ptmx" or link.endswith("/ptmx") for opened in open_files.values() for link in opened
    ):
        return None
    for process in tree:
        if any(
            link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")) for link in open_files[process.pid]
        ):
            return process
    return None


def _open_files(pid: int) -> list[str]:
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def program_of(pid: int) -> str:
    """The name of the program that a process runs, for messages."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "ended"


def pids_inside(init_pid: int, pids: Iterable[int]) -> dict[int, int]:
    """The pids that processes have in the pid namespace of ``init_pid``; without those that are not in it."""
    level = len(_namespace_pids(init_pid)) - 1
    found = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            numbers = _namespace_pids(pid)
            if len(numbers) > level:
                found[pid] = numbers[level]
    return found


def _namespace_pids(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_bytes()
    return [int(number) for number in status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()]


def find_holders(
    pids: Iterable[int], files: Collection[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, str]]:
    """Which process holds these files, given by device and inode: its pid, and the name below /proc/PID by which it does."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    for pid in pids:
        for name in _held_files(pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                status = os.stat(f"/proc/{pid}/{name}")
                if (status.st_dev, status.st_ino) in files:
                    found.setdefault((status.st_dev, status.st_ino), (pid, name))
    return found


def holder_of_socket(pids: Iterable[int], inode: int) -> int | None:
    """The first of these processes that has the socket open."""
    return next((pid for pid in pids if f"socket:[{inode}]" in _open_files(pid)), None)


def _held_files(pid: int) -> Iterator[str]:
    yield from ("cwd", "root", "exe")
    for directory in ("fd", "map_files"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"/proc/{pid}/{directory}"):
                yield f"{directory}/{name}"


def end_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    with ExitStack() as stack:
        pidfds: dict[int, int] = {}
        # Stop them all first: one that runs on could start others, which would be orphans by then.
        for _ in range(_ROUNDS_MAX):
            fresh = [process for process in tree_of(pid) if process.pid not in pidfds]
            if not fresh:
                break
            for process in fresh:
                with suppress(ProcessLookupError):
                    pidfds[process.pid] = fd = os.pidfd_open(process.pid)
                    stack.callback(os.close, fd)
                    signal.pidfd_send_signal(fd, signal.SIGSTOP)
        for fd in pidfds.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        _wait_for_deaths(list(pidfds.values()))


def _wait_for_deaths(fds: list[int]) -> None:
    deadline = time.monotonic() + DEATH_TIMEOUT_S
    for fd in fds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


def wait_until_free(pids: Iterable[int], timeout_s: float = REAP_TIMEOUT_S) -> Process | None:
    """Wait until these pids can be given to new processes.

    Until it is reaped, a dead process keeps its pid, and those of the leaders of its group and session. Returns a
    process for which it is no use to wait: it is alive and was not killed, or its parent does not reap it.
    """
    wanted = set(pids)
    deadline = time.monotonic() + timeout_s
    is_late = False
    while holders := processes_using_pids(wanted):
        for process in holders:
            if (process.is_alive and not _is_killed(process.pid)) or is_late:
                return process
            if process.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
        time.sleep(REAP_POLL_S)
        is_late = time.monotonic() > deadline  # we may have been slow ourselves: look once more
    return None


def _is_killed(pid: int) -> bool:
    """Whether it will die as soon as it runs, or no longer exists."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(signals >> (signal.SIGKILL - 1) & 1 for signals in pending)


def processes_using_pids(pids: Iterable[int]) -> list[Process]:
    """The processes, also dead ones that are not reaped, because of which no new one can get one of these pids."""
    wanted = set(pids)
    return [process for process in _all_processes() if wanted & process.ids()]


def _all_processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        process = read_process(int(entry)) if entry.isdigit() else None
        if process is not None:
            yield process
