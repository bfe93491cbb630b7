"""Watches of inotify survive, on whatever file, and a checkpoint itself causes no event."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until
from support.workload import assert_unharmed, assert_workload_survives, install_workloads, start_workload
from waypoint import Session, Waypoint
from waypoint.errors import DumpFailed, RestoreFailed
from waypoint.model import Volume, Walls
from workloads.watches import BASE_FILE, FILE_VOLUME, OTHER_BASE_FILE, VOLUME, WORKLOADS


@pytest.fixture
def workspace(workspace: Path) -> Path:
    """A workspace with files in it, which a session sees as part of its base."""
    (workspace / BASE_FILE).parent.mkdir(parents=True)
    (workspace / BASE_FILE).write_text("text of the base")
    (workspace / OTHER_BASE_FILE).write_text("another")
    return workspace


@pytest.fixture
def session(
    waypoint: Waypoint, workspace: Path, tmp_path: Path, leaves_nothing_behind: None
) -> Iterator[Session]:
    """A session with a volume, and a volume that is a file."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    volumes = [
        Volume(source=os.fspath(tmp_path / "directory"), path=os.fspath(VOLUME)),
        Volume(source=os.fspath(tmp_path / "file"), path=os.fspath(FILE_VOLUME)),
    ]
    created = waypoint.create(workspace, volumes=volumes)
    yield created
    created.cleanup(force=True)


@pytest.mark.parametrize("workload", [workload.__name__ for workload in WORKLOADS])
def test_a_process_still_watches(session: Session, workload: str) -> None:
    assert_workload_survives(session, "watches", workload)


def test_a_checkpoint_waits_for_readers_that_are_at_work_and_copies_learn_of_what_they_lost(
    session: Session,
) -> None:
    install_workloads(session)
    session.exec(f"cat >/tmp/readers.py <<'END'\n{READERS}END")
    session.exec("(python3 /tmp/readers.py >/tmp/readers.log 2>&1 &)")
    wait_until(session, "[ -e /tmp/watched/last ]")
    saved = session.snapshot()
    (fork,) = session.fork(saved)
    for branch, idle in ((session.main, "all 40"), (fork, "lost")):
        branch.exec("touch /tmp/go")
        wait_until(branch, "[ $(wc -l </tmp/readers.log) = 2 ]")
        assert branch.exec("sort /tmp/readers.log").output == f"at work: all 40\nidle: {idle}\n"


READERS = """\
import sys, time
from pathlib import Path
from threading import Thread
from workloads.watches import IN_CREATE, IN_Q_OVERFLOW, Inotify
Path("/tmp/watched").mkdir()
at_work, idle = Inotify(), Inotify()
for inotify in (at_work, idle):
    inotify.watch("/tmp/watched", IN_CREATE)
def read(inotify, name, pause):
    names = []
    while "last" not in names:
        for event in inotify.read(32 if pause else 1 << 20):
            if event.mask & IN_Q_OVERFLOW:
                return print(f"{name}: lost", flush=True)
            names.append(event.name)
        time.sleep(pause)
    print(f"{name}: all {len(names)}", flush=True)
for number in range(39):
    Path(f"/tmp/watched/{number}").touch()
Path("/tmp/watched/last").touch()
worker = Thread(target=read, args=(at_work, "at work", 0.01))
worker.start()
while not Path("/tmp/go").exists():
    time.sleep(0.01)
worker.join()
read(idle, "idle", 0)
"""
REFUSED = {
    "a file of a process that has ended": (
        "import os, subprocess; from workloads.watches import Inotify; inotify = Inotify();"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE); inotify.watch(f'/proc/{child.pid}/status', 2);"
        "child.communicate()",
        "watches a file that has no path any more",
    ),
    "fanotify": (
        "import ctypes; fd = ctypes.CDLL(None).fanotify_init(0, 0); assert fd >= 0",
        "uses fanotify",
    ),
}


@pytest.mark.parametrize(("program", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_branch_is_unharmed_by_a_snapshot_refused_because_a_process_watches(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, program: str, reason: str
) -> None:
    session = waypoint.create(workspace, walls=Walls(privileged=True))
    try:
        install_workloads(session)
        session.exec(f"python3 -c \"{program}; open('/tmp/ready', 'w'); input()\" <> <(:) &")
        wait_until(session, "[ -e /tmp/ready ]")
        pid = session.exec("echo $!").output.strip()
        for _ in range(2):
            with pytest.raises(DumpFailed, match=rf"process {pid} \(python3\) {reason}") as refused:
                session.snapshot()
            assert refused.value.hint
            assert session.exec("jobs -r | wc -l").output == "1\n"
        assert session.checkpoints() == []
        session.exec(f"kill {pid}; wait {pid}")
        session.snapshot()
    finally:
        session.cleanup(force=True)


def test_a_watch_that_cannot_be_set_again_is_named_and_the_branch_keeps_running(session: Session) -> None:
    start_workload(session, "watches", "made_in_the_session")
    saved = session.snapshot()
    records = session.context.layout.images(saved.id) / "watches"
    records.write_bytes(records.read_bytes().replace(b"/tmp/made/deep", b"/tmp/gone/deep"))
    with pytest.raises(RestoreFailed, match="cannot watch /tmp/gone/deep: No such file or directory"):
        session.restore(saved)
    assert_unharmed(session.main)
