"""Locks between processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from waypoint.errors import Busy
from waypoint.store.lock import (
    attendant_lock,
    branch_lock,
    forwarder_lock,
    gate_lock,
    locked,
    terminal_lock,
)


def test_a_second_holder_gets_busy_with_the_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, what="branch 'main'"), pytest.raises(Busy, match="branch 'main' is busy"):
        with locked(path, what="branch 'main'", wait=False):
            pass
    with locked(path, what="free again", wait=False):
        pass


def test_shared_holders_exclude_an_exclusive_one_but_not_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, what="gate", shared=True), locked(path, what="gate", shared=True, wait=False):
        with pytest.raises(Busy), locked(path, what="gate", wait=False):
            pass


def test_a_child_that_inherited_the_lock_keeps_it_after_we_release_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, what="x") as fd:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[fd]
        )
    with pytest.raises(Busy), locked(path, what="x", wait=False):
        pass
    child.communicate(b"")
    with locked(path, what="x", wait=False):
        pass


def test_whoever_waited_for_a_removed_lock_file_locks_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    got: list[bool] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        with locked(path, what="x") as fd:
            got.append(os.path.samestat(os.fstat(fd), path.stat()))

    with locked(path, what="x"):
        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait(10)
        path.unlink()
    thread.join(10)
    assert got == [True]


def test_no_two_locks_share_a_name() -> None:
    names = [
        make(session, branch)
        for session in ("s", "s.a")
        for branch in ("a", "a.gate", "a.terminal.main", "gate", "attendant", "forwarder")
        for make in (branch_lock, gate_lock, lambda session, branch: terminal_lock(session, branch, "main"))
    ]
    names += [make(session) for session in ("s", "s.a") for make in (attendant_lock, forwarder_lock)]
    assert len(set(names)) == len(names)
