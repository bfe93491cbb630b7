"""The queue of an inotify, and finding files by inode numbers, on this process and a small tree."""

import os
from pathlib import Path

from waypoint.kernel.processes.inotify import (
    drop_events,
    find_inotifies,
    leave_overflow,
    open_queue,
    set_next_number,
    set_watch,
    unread_bytes,
)
from waypoint.kernel.storage.inode_search import find_by_inodes
from workloads.watches import IN_CREATE, IN_Q_OVERFLOW, Event, Inotify


def test_an_emptied_queue_can_tell_that_events_were_lost_and_works_on(tmp_path: Path) -> None:
    inotify = Inotify()
    wd = inotify.watch(tmp_path, IN_CREATE)
    (tmp_path / "unread").touch()
    assert (os.getpid(), inotify.fd) in set(find_inotifies([os.getpid()]))
    with open_queue(os.getpid(), inotify.fd) as queue:
        assert unread_bytes(queue) > 0
        drop_events(queue)
        assert unread_bytes(queue) == 0
        leave_overflow(queue)
    (tmp_path / "new").touch()
    assert inotify.read() == [Event(-1, IN_Q_OVERFLOW, ""), Event(wd, IN_CREATE, "new")]
    os.close(inotify.fd)


def test_a_watch_gets_the_number_that_is_asked_for(tmp_path: Path) -> None:
    inotify = Inotify()
    set_watch(inotify.fd, 77, str(tmp_path), IN_CREATE)
    set_next_number(inotify.fd, 100)
    (tmp_path / "new").touch()
    assert inotify.watch("/", IN_CREATE) == 100
    assert inotify.read() == [Event(77, IN_CREATE, "new")]
    os.close(inotify.fd)


def test_files_are_found_by_their_inode_numbers(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "leaf").touch()
    (tmp_path / "deep" / "link").symlink_to("nowhere")
    paths = ["/deep", "/deep/link", "/deep/deeper/leaf"]
    inodes = [os.lstat(f"{tmp_path}{path}").st_ino for path in paths]
    missing = os.stat("/").st_ino
    assert find_by_inodes(str(tmp_path), [*inodes, missing]) == dict(zip(inodes, paths, strict=True))
