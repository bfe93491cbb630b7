"""Watches of inotify on files of every sort: each must report what is done to the file after the checkpoint, and only that."""

import ctypes
import fcntl
import mmap
import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from workloads.pausing import run

IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_CLOSE_NOWRITE, IN_OPEN, IN_CREATE, IN_DELETE = (
    1,
    2,
    4,
    0x10,
    0x20,
    0x100,
    0x200,
)
IN_DELETE_SELF, IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x400, 0x4000, 0x8000, 0x40000000
IN_DONT_FOLLOW, IN_EXCL_UNLINK, IN_ONESHOT = 0x2000000, 0x4000000, 0x80000000
ALL = 0xFFF

BASE_DIRECTORY, BASE_FILE = Path("tree"), Path("tree/deep/leaf")  # in the workspace, so in the base
OTHER_BASE_FILE, THIRD_BASE_FILE = Path("tree/deep/other"), Path("tree/deep/third")
VOLUME, FILE_VOLUME = Path("/srv/volume"), Path("/srv/file-volume")

_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    wd: int
    mask: int
    name: str


class Inotify:
    def __init__(self) -> None:
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self, path: Path | str, mask: int = ALL) -> int:
        number: int = _libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask))
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        return number

    def read(self, size: int = 1 << 20) -> list[Event]:
        """The events that wait to be read."""
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(data):
            wd, mask, _, length = struct.unpack_from("iIII", data, at)
            at += 16 + length
            events.append(Event(wd, mask, data[at - length : at].rstrip(b"\0").decode()))
        return events

    def await_event(self, expected: Event) -> None:
        """Wait for an event; others before it are an error, but for those of the same file."""
        seen: list[Event] = []
        while expected not in seen:
            ready, _, _ = select.select([self.fd], [], [], 10)
            assert ready, f"{expected} did not arrive; {seen} did"
            seen += self.read()
        assert {event.name for event in seen} == {expected.name}, seen


def _watched(path: Path) -> Iterator[None]:
    inotify = Inotify()
    wd = inotify.watch(path)
    yield
    assert inotify.read() == [], "the checkpoint itself was noticed"
    (path / "new").touch()
    inotify.await_event(Event(wd, IN_CREATE, "new"))


def _watched_file(path: Path, mask: int = ALL) -> Iterator[None]:
    inotify = Inotify()
    wd = inotify.watch(path, mask)
    yield
    assert inotify.read() == [], "the checkpoint itself was noticed"
    os.utime(path, follow_symlinks=False)
    inotify.await_event(Event(wd, IN_ATTRIB, ""))


def directory_of_the_base() -> Iterator[None]:
    yield from _watched(BASE_DIRECTORY)


def file_of_the_base() -> Iterator[None]:
    yield from _watched_file(BASE_FILE)


def copied_up_file() -> Iterator[None]:
    BASE_FILE.write_text("changed")
    yield from _watched_file(BASE_FILE)


def copied_up_directory() -> Iterator[None]:
    (BASE_DIRECTORY / "mine").touch()
    yield from _watched(BASE_DIRECTORY)


def file_that_is_changed_later() -> Iterator[None]:
    """Watched in the base, then copied up: the watch stays on what is seen at that path."""
    inotify = Inotify()
    wd = inotify.watch(BASE_FILE, IN_MODIFY | IN_ATTRIB)
    BASE_FILE.write_text("changed")
    inotify.read()
    yield
    assert not (seen := inotify.read()), seen
    os.utime(BASE_FILE)
    inotify.await_event(Event(wd, IN_ATTRIB, ""))


def made_in_the_session() -> Iterator[None]:
    Path("/tmp/made/deep").mkdir(parents=True)
    yield from _watched(Path("/tmp/made/deep"))


def renamed_while_watched() -> Iterator[None]:
    Path("/tmp/first/deep").mkdir(parents=True)
    inotify = Inotify()
    wd = inotify.watch("/tmp/first/deep", IN_CREATE)
    os.rename("/tmp/first", "/tmp/second")
    yield
    assert not (seen := inotify.read()), seen
    Path("/tmp/second/deep/new").touch()
    inotify.await_event(Event(wd, IN_CREATE, "new"))


def directory_of_the_base_renamed() -> Iterator[None]:
    """Renamed twice, once deeper, with a watched directory below it that is the base's own."""
    inotify = Inotify()
    top = inotify.watch(BASE_DIRECTORY, IN_CREATE)
    below = inotify.watch(BASE_FILE.parent, IN_CREATE)
    leaf = inotify.watch(BASE_FILE, IN_ATTRIB)
    os.rename(BASE_DIRECTORY, "wood")
    os.rename("wood/deep", "wood/deeper")
    os.mkdir("above")
    os.rename("wood", "above/wood")
    yield
    assert not (seen := inotify.read()), seen
    for path, wd in (("above/wood", top), ("above/wood/deeper", below)):
        Path(path, "new").touch()
        inotify.await_event(Event(wd, IN_CREATE, "new"))
    os.utime("above/wood/deeper/leaf")
    inotify.await_event(Event(leaf, IN_ATTRIB, ""))


def changed_and_renamed_file_of_the_base() -> Iterator[None]:
    inotify = Inotify()
    wd = inotify.watch(BASE_FILE, IN_ATTRIB)
    BASE_FILE.write_text("changed")
    os.rename(BASE_FILE, "elsewhere")
    BASE_FILE.write_text("another file with the old name")
    inotify.read()
    yield
    assert not (seen := inotify.read()), seen
    os.utime("elsewhere")
    inotify.await_event(Event(wd, IN_ATTRIB, ""))


def the_root() -> Iterator[None]:
    inotify = Inotify()
    wd = inotify.watch("/", IN_CREATE | IN_DELETE)
    yield
    assert not (seen := inotify.read()), seen
    Path("/new").touch()
    inotify.await_event(Event(wd, IN_CREATE, "new"))


def shared_memory_directory() -> Iterator[None]:
    yield from _watched(Path("/dev/shm"))


def _on_volume(path: Path) -> Iterator[None]:
    """All branches see what one of them does there."""
    inotify = Inotify()
    wd = inotify.watch(path, IN_CREATE | IN_MODIFY)
    yield
    inotify.read()
    if path.is_dir():
        name = f"new-{time.monotonic_ns()}"
        (path / name).touch()
        inotify.await_event(Event(wd, IN_CREATE, name))
    else:
        path.write_text("x")
        inotify.await_event(Event(wd, IN_MODIFY, ""))


def directory_of_a_volume() -> Iterator[None]:
    (VOLUME / "inside").mkdir(exist_ok=True)
    yield from _on_volume(VOLUME / "inside")


def root_of_a_volume() -> Iterator[None]:
    yield from _on_volume(VOLUME)


def file_of_a_volume() -> Iterator[None]:
    (VOLUME / "file").touch()
    yield from _on_volume(VOLUME / "file")


def volume_that_is_a_file() -> Iterator[None]:
    yield from _on_volume(FILE_VOLUME)


def proc() -> Iterator[None]:
    """Files of /proc report that they are opened; one of the system, one of a process, and the root."""
    inotify = Inotify()
    paths = ("/proc/sys/vm/overcommit_memory", f"/proc/{os.getpid()}/limits")
    held = [os.open(path, os.O_PATH) for path in paths]  # else the kernel may forget the file that is watched
    numbers = [inotify.watch(path, IN_OPEN) for path in paths]
    inotify.watch("/proc", IN_DELETE)
    yield
    assert not (seen := inotify.read()), seen
    for path, wd in zip(paths, numbers, strict=True):
        os.close(os.open(path, os.O_RDONLY))
        inotify.await_event(Event(wd, IN_OPEN, ""))
    assert len(held) == len(paths)


def sys() -> Iterator[None]:
    inotify = Inotify()
    directory = inotify.watch("/sys/kernel", IN_OPEN)
    file = inotify.watch("/sys/kernel/notes", IN_OPEN)
    yield
    assert not (seen := inotify.read()), seen
    os.close(os.open("/sys/kernel/notes", os.O_RDONLY))
    assert inotify.read() == [Event(directory, IN_OPEN, "notes"), Event(file, IN_OPEN, "")]


def terminals() -> Iterator[None]:
    inotify = Inotify()
    wd = inotify.watch("/dev/pts", IN_ATTRIB)
    inotify.watch("/dev/pts/0", IN_DELETE_SELF)
    yield
    assert not (seen := inotify.read()), seen
    os.chmod("/dev/pts/0", 0o620)
    inotify.await_event(Event(wd, IN_ATTRIB, "0"))


def deleted_file() -> Iterator[None]:
    with open("/tmp/deleted", "w") as file:
        inotify = Inotify()
        wd = inotify.watch("/tmp/deleted", IN_MODIFY)
        os.unlink("/tmp/deleted")
        yield
        assert not (seen := inotify.read()), seen
        file.write("more")
        file.flush()
        inotify.await_event(Event(wd, IN_MODIFY, ""))


def deleted_file_of_the_base() -> Iterator[None]:
    with open(BASE_FILE) as file:
        inotify = Inotify()
        wd = inotify.watch(BASE_FILE, IN_ACCESS)
        BASE_FILE.unlink()
        yield
        assert not (seen := inotify.read()), seen
        assert file.read()
        inotify.await_event(Event(wd, IN_ACCESS, ""))


def deleted_directory() -> Iterator[None]:
    os.mkdir("/tmp/standing")
    os.chdir("/tmp/standing")
    inotify = Inotify()
    wd = inotify.watch(".", IN_ATTRIB)
    os.rmdir("/tmp/standing")
    inotify.read()
    yield
    assert not (seen := inotify.read()), seen
    os.utime(".")
    inotify.await_event(Event(wd, IN_ATTRIB | IN_ISDIR, ""))


def deleted_name_of_a_linked_file() -> Iterator[None]:
    Path("/tmp/one").touch()
    inotify = Inotify()
    wd = inotify.watch("/tmp/one", IN_ATTRIB)
    os.link("/tmp/one", "/tmp/other")
    os.unlink("/tmp/one")
    inotify.read()
    yield
    assert not (seen := inotify.read()), seen
    os.utime("/tmp/other")
    inotify.await_event(Event(wd, IN_ATTRIB, ""))


def symbolic_link() -> Iterator[None]:
    os.symlink("/nowhere", "/tmp/link")
    yield from _watched_file(Path("/tmp/link"), mask=IN_ATTRIB | IN_DONT_FOLLOW)


def names_with_blanks_and_line_ends() -> Iterator[None]:
    path = Path("/tmp/a b\nc \\040 ä\n")
    path.mkdir()
    yield from _watched(path)


def watches_that_end_by_themselves() -> Iterator[None]:
    """One reports a single event; one nothing about files that were deleted."""
    os.mkdir("/tmp/once")
    os.mkdir("/tmp/undeleted")
    inotify = Inotify()
    once = inotify.watch("/tmp/once", IN_CREATE | IN_ONESHOT)
    inotify.watch("/tmp/undeleted", IN_MODIFY | IN_EXCL_UNLINK)
    with open("/tmp/undeleted/file", "w") as file:
        yield
        Path("/tmp/once/a").touch()
        Path("/tmp/once/b").touch()
        assert inotify.read() == [Event(once, IN_CREATE, "a"), Event(once, IN_IGNORED, "")]
        os.unlink("/tmp/undeleted/file")
        file.write("unseen")
        file.flush()
        assert not (seen := inotify.read()), seen


def many() -> Iterator[None]:
    """Numbers have gaps; two descriptors of one inotify; a second inotify on the same files."""
    inotify, second = Inotify(), Inotify()
    numbers = {}
    for number in range(2000):
        path = Path(f"/tmp/many/{number % 40}/{number}")
        path.mkdir(parents=True)
        numbers[path] = inotify.watch(path, IN_CREATE)
    other = second.watch("/tmp/many/7/7", IN_CREATE)
    for path in list(numbers)[::3]:
        _libc.inotify_rm_watch(inotify.fd, numbers.pop(path))
    inotify.read()
    duplicate = os.dup(inotify.fd)
    yield
    inotify.fd = duplicate
    assert not (seen := inotify.read()), seen
    for path, wd in numbers.items():
        (path / "new").touch()
        assert inotify.read() == [Event(wd, IN_CREATE, "new")]
    second.await_event(Event(other, IN_CREATE, "new"))
    assert inotify.watch("/tmp/many", IN_CREATE) == 2001


def noticed_by_nobody() -> Iterator[None]:
    """Mapped, open, locked and deleted files in a directory: saving and restoring these opens and closes many files."""
    os.mkdir("/tmp/busy")
    inotify = Inotify()
    with open("/tmp/busy/mapped", "w+b") as mapped, open("/tmp/busy/deleted", "w+b") as deleted:
        mapped.write(bytes(8192))
        mapped.flush()
        mapping = mmap.mmap(mapped.fileno(), 8192)
        deleted.write(b"content")
        deleted.flush()
        os.unlink("/tmp/busy/deleted")
        fcntl.flock(mapped, fcntl.LOCK_EX)
        inotify.watch("/tmp/busy")
        inotify.watch("/tmp/busy/mapped")
        inotify.watch("/", IN_OPEN | IN_CLOSE_NOWRITE | IN_CREATE | IN_DELETE)
        yield
        seen = [event for event in inotify.read() if event.name != ".waypoint"]  # commands come from there
        assert seen == [], "the checkpoint itself was noticed"
        mapping[0] = 1


def blocked_reader() -> Iterator[None]:
    """Waits in read() for events; those that arrived at the snapshot must wake it in every copy."""
    inotify = Inotify()
    os.set_blocking(inotify.fd, True)
    os.mkdir("/tmp/blocked")
    inotify.watch("/tmp/blocked", IN_CREATE)
    Path("/tmp/blocked/unread").touch()
    yield
    assert inotify.read() in ([Event(1, IN_CREATE, "unread")], [Event(-1, IN_Q_OVERFLOW, "")])
    Path("/tmp/blocked/read").touch()
    assert inotify.read() == [Event(1, IN_CREATE, "read")]


WORKLOADS: tuple[Callable[[], Iterator[None]], ...] = (
    directory_of_the_base,
    file_of_the_base,
    copied_up_file,
    copied_up_directory,
    file_that_is_changed_later,
    made_in_the_session,
    renamed_while_watched,
    directory_of_the_base_renamed,
    changed_and_renamed_file_of_the_base,
    the_root,
    shared_memory_directory,
    directory_of_a_volume,
    root_of_a_volume,
    file_of_a_volume,
    volume_that_is_a_file,
    proc,
    sys,
    terminals,
    deleted_file,
    deleted_file_of_the_base,
    deleted_directory,
    deleted_name_of_a_linked_file,
    symbolic_link,
    names_with_blanks_and_line_ends,
    watches_that_end_by_themselves,
    many,
    noticed_by_nobody,
    blocked_reader,
)

if __name__ == "__main__":
    run(*WORKLOADS)
