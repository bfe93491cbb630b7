"""The queue of an inotify in another process: the events that wait to be read there."""

import errno
import fcntl
import os
import struct
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from waypoint.kernel.syscalls import add_watch, duplicate_descriptor, remove_watch

__all__ = [
    "drop_events",
    "find_inotifies",
    "leave_overflow",
    "open_queue",
    "set_next_number",
    "set_watch",
    "unread_bytes",
]

_LINK = "anon_inode:inotify"
_EVENT_BYTES = 16  # of one without a name
_EVENTS_MAX = 1 << 22  # no host allows that many to wait
_SET_NEXT_WATCH = 0x40044900  # INOTIFY_IOC_SETNEXTWD
_EVENTS_AT_ONCE = 1 << 10
_IN_ATTRIB = 4


def find_inotifies(pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The descriptors of inotify in these processes, each with its process."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == _LINK:
                        yield pid, int(fd)


@contextmanager
def open_queue(pid: int, fd: int) -> Iterator[int]:
    """Our own duplicate of the descriptor, for the length of the block. Raises OSError if it is gone."""
    pidfd = os.pidfd_open(pid)
    try:
        queue = duplicate_descriptor(pidfd, fd)
    finally:
        os.close(pidfd)
    try:
        yield queue
    finally:
        os.close(queue)


def unread_bytes(queue: int) -> int:
    answer = fcntl.ioctl(queue, termios.FIONREAD, bytes(4))
    return int(struct.unpack("i", answer)[0])


def drop_events(queue: int) -> None:
    """Read away the events that wait now. Nobody else may read them meanwhile."""
    if size := unread_bytes(queue):
        os.read(queue, size)


def set_watch(queue: int, number: int, path: str, mask: int) -> None:
    """Watch a file under a certain number, which must be free."""
    set_next_number(queue, number)
    if add_watch(queue, path, mask) != number:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def set_next_number(queue: int, number: int) -> None:
    """Let the next watch have this number, or the next free one above it."""
    fcntl.ioctl(queue, _SET_NEXT_WATCH, number)


def leave_overflow(queue: int) -> None:
    """Make the queue, which is empty, hold one event: that some were lost.

    Only the kernel makes that event, when a queue is full. So it is filled with events of two files of our own, in
    turns, because equal events in a row count once; and emptied again up to that last one.
    """
    ours = [os.memfd_create("events", os.MFD_CLOEXEC) for _ in range(2)]
    try:
        numbers = [add_watch(queue, f"/proc/self/fd/{fd}", _IN_ATTRIB) for fd in ours]
        made = 0
        while unread_bytes(queue) == made * _EVENT_BYTES:
            if made >= _EVENTS_MAX:
                raise OSError("the queue of an inotify does not fill up")
            for _ in range(_EVENTS_AT_ONCE // 2):
                for fd in ours:
                    os.fchmod(fd, 0o600)
            made += _EVENTS_AT_ONCE
        for number in numbers:
            remove_watch(queue, number)  # a full queue does not take the news
    finally:
        for fd in ours:
            os.close(fd)
    left = unread_bytes(queue) - _EVENT_BYTES
    while left:
        left -= len(os.read(queue, left))
