"""Locks on files that are mapped or not: each must keep others out after a restore, as before the checkpoint."""

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from workloads.pausing import run

OFD_SETLK, OFD_GETLK = 37, 36
RANGE_START, RANGE_LENGTH = 120, 8  # as a database does, in the middle


def _open(name: str) -> int:
    Path(name).write_bytes(bytes(8192))
    return os.open(name, os.O_RDWR)


def _map(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, 8192)


def _request(kind: int, start: int = 0, length: int = 0) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def _is_free(name: str, kind: int, start: int = 0, length: int = 0) -> bool:
    """Whether another process could take a POSIX lock."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        fd = os.open(name, os.O_RDWR)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _request(kind, start, length))
        os.write(writer, b"free" if struct.unpack_from("h", answer)[0] == fcntl.F_UNLCK else b"held")
        os._exit(0)
    os.wait()
    os.close(writer)
    answer = os.read(reader, 10)
    os.close(reader)
    return answer == b"free"


def _assert_exclusive(name: str) -> None:
    assert not _is_free(name, fcntl.F_RDLCK, RANGE_START, RANGE_LENGTH)
    assert _is_free(name, fcntl.F_WRLCK, 0, RANGE_START), "more is locked than before"
    assert _is_free(name, fcntl.F_WRLCK, RANGE_START + RANGE_LENGTH, 0), "more is locked than before"


def exclusive_on_a_mapped_file() -> Iterator[None]:
    fd = _open("/tmp/locked")
    fcntl.lockf(fd, fcntl.LOCK_EX, RANGE_LENGTH, RANGE_START)
    mapping = _map(fd)
    yield
    _assert_exclusive("/tmp/locked")
    mapping[0] = 1
    fcntl.lockf(fd, fcntl.LOCK_UN, RANGE_LENGTH, RANGE_START)
    assert _is_free("/tmp/locked", fcntl.F_WRLCK)


def shared_on_a_mapped_file() -> Iterator[None]:
    fd = _open("/tmp/locked")
    fcntl.lockf(fd, fcntl.LOCK_SH, RANGE_LENGTH, RANGE_START)
    mapping = _map(fd)
    yield
    assert _is_free("/tmp/locked", fcntl.F_RDLCK)
    assert not _is_free("/tmp/locked", fcntl.F_WRLCK)
    assert mapping[0] == 0


def on_a_file_that_is_not_mapped() -> Iterator[None]:
    fd = _open("/tmp/locked")
    fcntl.lockf(fd, fcntl.LOCK_EX, RANGE_LENGTH, RANGE_START)
    yield
    _assert_exclusive("/tmp/locked")


def many_ranges_on_a_mapped_file() -> Iterator[None]:
    fd = _open("/tmp/locked")
    mapping = _map(fd)
    for start in range(0, 4000, 2):
        fcntl.lockf(fd, fcntl.LOCK_SH if start % 4 else fcntl.LOCK_EX, 1, start)
    yield
    assert mapping[0] == 0
    for start in (0, 2, 1998, 2000, 3998):
        assert _is_free("/tmp/locked", fcntl.F_RDLCK, start, 1) == bool(start % 4)
        assert not _is_free("/tmp/locked", fcntl.F_WRLCK, start, 1)
        assert _is_free("/tmp/locked", fcntl.F_WRLCK, start + 1, 1)


def taken_by_a_thread_through_a_second_descriptor() -> Iterator[None]:
    fd = _open("/tmp/locked")
    second = os.open("/tmp/locked", os.O_RDWR)
    mapping = _map(fd)
    taken, end = threading.Event(), threading.Event()

    def take() -> None:
        fcntl.lockf(second, fcntl.LOCK_EX, RANGE_LENGTH, RANGE_START)
        taken.set()
        end.wait()

    thread = threading.Thread(target=take)
    thread.start()
    taken.wait()
    yield
    _assert_exclusive("/tmp/locked")
    assert mapping[0] == 0
    end.set()
    thread.join()


def of_two_processes_on_one_mapped_file() -> Iterator[None]:
    """The child has its own lock on a file that both have mapped and inherited, and keeps what it has."""
    fd = _open("/tmp/locked")
    mapping = _map(fd)
    fcntl.lockf(fd, fcntl.LOCK_EX, RANGE_LENGTH, RANGE_START)
    ours, theirs = os.pipe()
    stop, go = os.pipe()
    if os.fork() == 0:
        fcntl.lockf(fd, fcntl.LOCK_EX, 4, 1000)
        os.write(theirs, b"taken")
        os.read(stop, 1)
        os._exit(0)
    os.read(ours, 10)
    yield
    assert not _is_free("/tmp/locked", fcntl.F_RDLCK, RANGE_START, RANGE_LENGTH)
    assert not _is_free("/tmp/locked", fcntl.F_RDLCK, 1000, 4)
    holder = struct.unpack_from("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, _request(fcntl.F_WRLCK, 1000, 4)))[4]
    assert holder not in (0, os.getpid())
    os.write(go, b"x")
    os.wait()
    assert _is_free("/tmp/locked", fcntl.F_WRLCK, 1000, 4)
    assert mapping[0] == 0


def of_a_child_through_an_inherited_descriptor() -> Iterator[None]:
    fd = _open("/tmp/locked")
    ours, theirs = os.pipe()
    stop, go = os.pipe()
    if os.fork() == 0:
        fcntl.lockf(fd, fcntl.LOCK_EX, RANGE_LENGTH, RANGE_START)
        os.write(theirs, b"taken")
        os.read(stop, 1)
        os._exit(0)
    os.read(ours, 10)
    yield
    _assert_exclusive("/tmp/locked")
    os.write(go, b"x")
    os.wait()
    assert _is_free("/tmp/locked", fcntl.F_WRLCK)


def flock_on_a_mapped_file() -> Iterator[None]:
    fd = _open("/tmp/locked")
    mapping = _map(fd)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    other = os.open("/tmp/locked", os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        raise AssertionError("the lock was lost")
    fcntl.flock(fd, fcntl.LOCK_SH)
    fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert mapping[0] == 0


def of_an_open_file_description_on_a_mapped_file() -> Iterator[None]:
    fd = _open("/tmp/locked")
    mapping = _map(fd)
    fcntl.fcntl(fd, OFD_SETLK, _request(fcntl.F_WRLCK, RANGE_START, RANGE_LENGTH))
    yield
    other = os.open("/tmp/locked", os.O_RDWR)
    answer = fcntl.fcntl(other, OFD_GETLK, _request(fcntl.F_RDLCK, RANGE_START, RANGE_LENGTH))
    assert struct.unpack_from("h", answer)[0] == fcntl.F_WRLCK
    answer = fcntl.fcntl(other, OFD_GETLK, _request(fcntl.F_WRLCK, 0, RANGE_START))
    assert struct.unpack_from("h", answer)[0] == fcntl.F_UNLCK
    assert mapping[0] == 0


def lease_on_a_mapped_file() -> Iterator[None]:
    Path("/tmp/leased").write_bytes(bytes(8192))
    fd = os.open("/tmp/leased", os.O_RDONLY)
    mapping = mmap.mmap(fd, 8192, prot=mmap.PROT_READ)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    yield
    assert fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_RDLCK
    assert mapping[0] == 0


WORKLOADS: tuple[Callable[[], Iterator[None]], ...] = (
    exclusive_on_a_mapped_file,
    shared_on_a_mapped_file,
    on_a_file_that_is_not_mapped,
    many_ranges_on_a_mapped_file,
    taken_by_a_thread_through_a_second_descriptor,
    of_two_processes_on_one_mapped_file,
    of_a_child_through_an_inherited_descriptor,
    flock_on_a_mapped_file,
    of_an_open_file_description_on_a_mapped_file,
    lease_on_a_mapped_file,
)

if __name__ == "__main__":
    run(*WORKLOADS)
