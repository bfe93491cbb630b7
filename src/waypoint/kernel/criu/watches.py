"""Watches of inotify: how they get into a checkpoint, and how a snapshot or a restore leaves no trace in them.

CRIU saves an inotify without its watches. native/preload/watches.c finds their paths meanwhile, and sets them again at a
restore; the records that it writes and reads, described there, are kept beside CRIU's images.

CRIU opens and closes files in watched directories. The events that this causes are read away while nothing runs. Events
that were unread before are in no checkpoint: in a copy their reader finds the event that says that some were lost.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from waypoint.kernel.criu.handed_over import Input
from waypoint.kernel.criu.images import INOTIFIES_MAX, number_inotifies
from waypoint.kernel.criu.refusal import CannotBeSaved
from waypoint.kernel.processes.inotify import (
    drop_events,
    find_inotifies,
    leave_overflow,
    open_queue,
    set_next_number,
    set_watch,
    unread_bytes,
)
from waypoint.kernel.processes.process_tree import find_holders, pids_inside, program_of
from waypoint.kernel.storage.inode_search import find_by_inodes
from waypoint.kernel.storage.mounts import read_mounts

__all__ = ["LostWatch", "Overlay", "SavedWatches", "WatchRecorder"]

READER_WAIT_S = 1.0  # for readers that are at work on their events
READER_IDLE_S = 0.05  # one that has read nothing for so long is not
READER_POLL_S = 0.005  # nothing announces that events were read

_FILE = "watches"  # beside the images
_DIRECTORY = os.O_DIRECTORY
_RECORDING, _SAVED = "WAYPOINT_WATCHES", "WAYPOINT_SAVED_WATCHES"  # native/preload/watches.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """An overlay of the tree: where it is mounted, its device number, and the directories that it is made of."""

    name: str
    mount_point: str
    device: int
    upper: Path
    lower: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWatch:
    """A watch on a file that is not where its handle leads. ``below`` is its path in the layer it is from, if known."""

    wd: int
    mask: int
    device: int
    inode: int
    handle: bytes
    below: str

    def found(self, kind: str, where: str) -> bytes:
        """The record of this watch, now that its file was found."""
        return os.fsencode(f"{kind} {self.wd} {self.mask:x} {where}")


@dataclass(slots=True, kw_only=True)
class _Inotify:
    """An inotify: a process inside that has it, its program, and which descriptor it is; its watches, as records."""

    pid: int
    program: str
    fd: int
    unread: int
    watches: list[bytes] = field(default_factory=list)
    lost: list[LostWatch] = field(default_factory=list)


FindLost = Callable[[Sequence[LostWatch]], Sequence[bytes | None]]
"""Return the record of each watch, or None if its file cannot be found either."""


class WatchRecorder:
    """A context manager for the time of one dump: begun before anything is stopped, it waits for readers at work.

    Its methods are called in the order in which they stand here.
    """

    def __init__(self, init_pid: int, pids: Iterable[int], overlays: Sequence[Overlay] = ()) -> None:
        self._init_pid = init_pid
        self._pids = pids
        self._overlays = overlays
        self._queues: dict[tuple[int, int], int] = {}
        self._unread: dict[tuple[int, int], int] = {}
        self._inotifies: list[_Inotify] = []

    def __enter__(self) -> "WatchRecorder":
        descriptors: list[int] = []
        with ExitStack() as stack:

            def opened(path: Path | str, flags: int = 0) -> int:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
                stack.callback(os.close, fd)
                descriptors.append(fd)
                return fd

            self._output = os.memfd_create("watches", os.MFD_CLOEXEC)
            stack.callback(os.close, self._output)
            root = opened(f"/proc/{self._init_pid}/root", _DIRECTORY | os.O_PATH)
            words = [f"{self._output},{root},{self._init_pid}"]
            for overlay in self._overlays:
                upper, lower = opened(overlay.upper, _DIRECTORY), opened(overlay.lower, _DIRECTORY)
                words.append(f";{overlay.device}={upper},{lower}")
            for pid, fd in find_inotifies(self._pids):
                with suppress(OSError):  # closed meanwhile
                    description = opened(f"/proc/{pid}/fdinfo/{fd}")
                    self._queues[pid, fd] = stack.enter_context(open_queue(pid, fd))
                    words.append(f":{pid},{fd}={description}")
            self._await_readers()
            self._stack = stack.pop_all()
        self.env = {_RECORDING: "".join(words)}
        self.descriptors = (self._output, *descriptors)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _await_readers(self) -> None:
        """Give readers that are at work the time to read their events: a checkpoint cannot have these."""
        queues = [queue for queue in self._queues.values() if unread_bytes(queue)]
        began = read = time.monotonic()
        least = sum(map(unread_bytes, queues))
        while least and time.monotonic() < min(began + READER_WAIT_S, read + READER_IDLE_S):
            time.sleep(READER_POLL_S)
            left = sum(map(unread_bytes, queues))
            if left < least:
                least, read = left, time.monotonic()

    def note_unread(self) -> None:
        """Note which events wait to be read. Every task is stopped, and CRIU has opened nothing yet."""
        self._unread = {key: unread_bytes(queue) for key, queue in self._queues.items()}

    def forget_events(self) -> None:
        """Read away the events that CRIU and we have caused. Every task is stopped still. Raises CannotBeSaved."""
        self._inotifies = self._read_records()
        if any(inotify.lost for inotify in self._inotifies):
            self._find(self._held_files())
            self._find(self._files_elsewhere())
        for key, queue in self._queues.items():
            if not self._unread[key]:
                drop_events(queue)

    def keep(self, images: Path, find: FindLost) -> None:
        """Write the records beside the images, which are complete. Raises CannotBeSaved."""
        if not self._inotifies:
            return
        records = []
        for inotify in self._inotifies:
            found = find(inotify.lost) if inotify.lost else ()
            records.append(f"I {inotify.pid} {inotify.fd} {int(inotify.unread > 0)}".encode())
            inotify.watches += [
                _require(record, watch, inotify) for watch, record in zip(inotify.lost, found, strict=True)
            ]
            records += sorted(
                inotify.watches, key=_number
            )  # the next one then gets the number it would have got
        if len(self._inotifies) > INOTIFIES_MAX:
            raise CannotBeSaved(f"there are more than {INOTIFIES_MAX} inotifies", hint="end some programs")
        if number_inotifies(images) != len(self._inotifies):
            raise CannotBeSaved("descriptors of inotify were passed on meanwhile", hint="save it again")
        (images / _FILE).write_bytes(b"".join(record + b"\0" for record in records))

    def _read_records(self) -> list[_Inotify]:
        records = os.pread(self._output, os.fstat(self._output).st_size, 0).split(b"\0")[:-1]
        inside = pids_inside(
            self._init_pid, {int(record.split()[1]) for record in records if record[:1] in b"IF"}
        )
        inotifies: list[_Inotify] = []
        for record in records:
            kind, *words = record.split(b" ")
            if kind == b"I":
                pid, fd, unread = map(int, words)
                unread = self._unread.get((pid, fd), unread)
                inotifies.append(_Inotify(pid=inside[pid], program=program_of(pid), fd=fd, unread=unread))
            elif kind == b"F":
                pid = int(words[0])
                raise CannotBeSaved(
                    f"process {inside[pid]} ({program_of(pid)}) uses fanotify, which cannot be saved",
                    hint="end it, or let it watch by inotify",
                )
            elif kind == b"?":
                inotifies[-1].lost.append(_parse_lost(record))
            else:
                inotifies[-1].watches.append(record)
        return inotifies

    def _find(self, found: Mapping[tuple[int, int], tuple[str, str]]) -> None:
        """Take what was found, by device and inode, as the kind of a record and its last words."""
        for inotify in self._inotifies:
            for watch in tuple(inotify.lost):
                if (watch.device, watch.inode) in found:
                    inotify.watches.append(watch.found(*found[watch.device, watch.inode]))
                    inotify.lost.remove(watch)

    def _lost_files(self) -> set[tuple[int, int]]:
        return {(watch.device, watch.inode) for inotify in self._inotifies for watch in inotify.lost}

    def _held_files(self) -> dict[tuple[int, int], tuple[str, str]]:
        """The lost files that a process holds; deleted ones come back only so."""
        holders = find_holders(self._pids, self._lost_files())
        inside = pids_inside(self._init_pid, {pid for pid, _ in holders.values()})
        return {file: ("D", f"{inside[pid]} {name}") for file, (pid, name) in holders.items()}

    def _files_elsewhere(self) -> dict[tuple[int, int], tuple[str, str]]:
        """The lost files of file systems that cannot be asked for them."""
        overlays = {overlay.device for overlay in self._overlays}
        wanted = defaultdict(set)
        for device, inode in self._lost_files():
            if device not in overlays:
                wanted[device].add(inode)
        found = {}
        for entry in read_mounts(self._init_pid) if wanted else ():
            inodes, mount_point = wanted[entry.device_number], entry.path.rstrip("/")
            for inode, path in find_by_inodes(f"/proc/{self._init_pid}/root{mount_point}", inodes).items():
                found[entry.device_number, inode] = ("V", f"{mount_point}{path}")
                inodes.remove(inode)
        return found


class SavedWatches(Input):
    """A context manager for the time of one restore: what native/preload/watches_set.c needs of the records."""

    def __init__(self, images: Path) -> None:
        super().__init__(_SAVED, images / _FILE)

    def complete(self, outside: Mapping[int, int]) -> None:
        """Set the watches on files that processes hold, and read away the events that CRIU has caused.

        ``outside`` are the pids that the processes of the tree have for us. None of them has run yet.
        """
        if not self.descriptors:
            return
        for head, watches in _groups(self.file.read_bytes().split(b"\0")[:-1]):
            pid, fd, is_unread = map(int, head.split(b" ")[1:])
            with open_queue(outside[pid], fd) as queue:
                held = [watch for watch in watches if watch.startswith(b"D ")]
                for watch in held:
                    _, wd, mask, holder, name = watch.decode().split(" ", 4)
                    set_watch(queue, int(wd), f"/proc/{outside[int(holder)]}/{name}", int(mask, 16))
                if held:
                    set_next_number(queue, _number(watches[-1]) + 1)
                drop_events(queue)
                if is_unread:
                    leave_overflow(queue)


def _groups(records: Iterable[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """The records of each inotify: the first, and those of its watches."""
    head, watches = b"", list[bytes]()
    for record in records:
        if record.startswith(b"I "):
            if head:
                yield head, watches
            head, watches = record, []
        else:
            watches.append(record)
    if head:
        yield head, watches


def _number(watch: bytes) -> int:
    return int(watch.split(b" ", 2)[1])


def _parse_lost(record: bytes) -> LostWatch:
    _, wd, mask, device, inode, handle, below = record.split(b" ", 6)
    return LostWatch(
        wd=int(wd),
        mask=int(mask, 16),
        device=int(device),
        inode=int(inode),
        handle=bytes.fromhex(handle.decode()),
        below=os.fsdecode(below),
    )


def _require(record: bytes | None, watch: LostWatch, inotify: _Inotify) -> bytes:
    if record is None:
        where = f"once {watch.below}, " if watch.below else ""
        where += f"inode {watch.inode} of device {os.major(watch.device)}:{os.minor(watch.device)}"
        raise CannotBeSaved(
            f"process {inotify.pid} ({inotify.program}) watches a file that has no path any more ({where})",
            hint="end or restart that process, and save again",
        )
    return record
