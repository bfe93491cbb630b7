"""Manual mode: a simulator on the host goes back to an earlier step, in memory and in its files, with the same pid."""

import ctypes
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.crash import fail_at, killed_at
from support.waiting import wait_for
from waypoint import Session, Waypoint
from waypoint.errors import EngineError, NotFound, UsageError
from waypoint.kernel.processes.process_tree import end_tree, read_process
from waypoint.kernel.storage.mounts import detach_all
from waypoint.log import step_observers
from waypoint.model import CheckpointKind
from waypoint.store.lock import locked
from waypoint.store.pool import unmount_pool

SIMULATOR = Path(__file__).parents[1] / "workloads/simulator.py"
Start = Callable[[str], int]
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None)


@pytest.fixture
def working(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[Session]:
    created = waypoint.create(workspace, work_dir=True)
    yield created
    created.cleanup(force=True)


@pytest.fixture
def work(working: Session) -> Path:
    assert working.work_directory is not None
    return working.work_directory


@pytest.fixture
def reaped() -> Iterator[list[int]]:
    """Orphans with these pids become our children, and we reap them, because process 1 of some hosts is slow at it."""
    pids: list[int] = []
    is_over = threading.Event()

    def reap() -> None:
        while not is_over.wait(0.01):
            for pid in pids:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    thread = threading.Thread(target=reap)
    thread.start()
    yield pids
    is_over.set()
    thread.join()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def start(work: Path, reaped: list[int]) -> Iterator[Start]:
    """A function that starts the simulator: without a terminal, as the leader of one, or as a job of a shell on one."""
    pids = reaped
    masters: list[int] = []

    def begin(how: str = "away") -> int:
        pid_file = work.parent.parent.parent / "simulator.pid"
        script = f"cd {work}; echo $$ >{pid_file}; exec {sys.executable} -S {SIMULATOR} >out.txt"
        if how == "away":
            words = ["setsid", "--fork", "sh", "-c", f"{script} 2>&1"]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        else:
            shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
            child, master = run_at_terminal(["/bin/sh", "-c", script] if how == "leader" else shell)
            masters.append(master)
            pids.append(child)
            if how == "job":
                os.write(master, f"sh -c {shlex.quote(script)} &\n".encode())
        wait_for(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
        pids.insert(0, int(pid_file.read_text()))
        pid_file.unlink()
        wait_for(lambda: step_of(work) >= 20)
        return pids[0]

    yield begin
    for pid in pids:
        end_tree(pid)
    wait_for(lambda: not any(map(read_process, pids)))
    for master in masters:
        os.close(master)


def run_at_terminal(words: list[str]) -> tuple[int, int]:
    """Start a program on a new terminal; return its pid and our end of the terminal."""
    pid, master = pty.fork()
    if pid == 0:
        # our own inherited descriptors: CRIU could not save a lock or pipe among them
        os.closerange(3, 1 << 20)
        os.execv(words[0], words)
    return pid, master


def step_of(work: Path) -> int:
    with suppress(OSError, ValueError):
        return int((work / "step.txt").read_text())
    return 0


def last_step(work: Path) -> int:
    lines = (work / "log.txt").read_text().splitlines()
    assert lines == [str(number + 1) for number in range(len(lines))], "a step is missing or doubled"
    return len(lines)


def assert_continues_from(work: Path, step: int) -> None:
    """Check that the simulator continues in memory from the step that its files show."""
    wait_for(lambda: step_of(work) > step + 20)
    assert last_step(work) >= step + 20
    said = (work / "out.txt").read_text().splitlines()
    assert said[:-1] == [f"step {number + 1}" for number in range(len(said) - 1)]


@pytest.mark.parametrize("how", ["away", "leader", "job"])
def test_a_restore_takes_a_simulator_back_in_memory_and_files(
    working: Session, work: Path, start: Start, how: str
) -> None:
    pid = start(how)
    saved = working.snapshot("early", pid=pid)
    assert saved.kind is CheckpointKind.PROCESS
    assert saved.memory_bytes > 100_000
    at_snapshot = saved_step(working)
    for _ in range(2):  # the second time, the restored program runs
        wait_for(lambda: step_of(work) > at_snapshot + 100)
        (work / "later").touch()
        restored = working.restore("early")
        assert not (work / "later").exists()
        assert working.program_pid(restored) == pid
        process = read_process(pid)
        assert process is not None
        assert process.is_alive
        assert os.readlink(f"/proc/{pid}/cwd") == str(work)
        assert "waypoint" not in Path(f"/proc/{pid}/cgroup").read_text()
        assert_continues_from(work, at_snapshot)
    assert working.exec("pwd").output == f"{working.record.workspace}\n"  # a fresh shell


def saved_step(session: Session) -> int:
    layout, [*_, saved] = session.context.layout, session.checkpoints()
    upper = layout.checkpoint_layer(saved.id) / "upper" / session.record.workspace.lstrip("/")
    return len((upper / "log.txt").read_text().splitlines())


@pytest.mark.quick
def test_a_program_that_has_ended_is_restored_and_a_fork_has_its_files(
    working: Session, work: Path, start: Start
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    step = saved_step(working)
    end_tree(pid)
    [side] = working.fork("early", ids=["side"])
    assert side.exec("tail -n1 log.txt").output == f"{step}\n"
    working.restore("early")
    assert_continues_from(work, step)
    assert side.exec("tail -n1 log.txt").output == f"{step}\n"


def test_a_program_is_restored_after_a_reboot(
    working: Session, work: Path, start: Start, state_dir: Path
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    step = saved_step(working)
    end_tree(pid)
    context, incarnation = working.context, working.main.record.incarnation
    context.platform.cgroup(incarnation).remove()
    for directory in (context.layout.mount(incarnation), work):
        detach_all(directory)
    unmount_pool(state_dir)
    context.platform.criu.kdat.unlink()
    with Waypoint(state_dir) as waypoint:
        waypoint.session(working.id).restore("early")
        assert_continues_from(work, step)


def test_children_are_saved_with_the_program(working: Session, work: Path, start: Start) -> None:
    start("away")
    with subprocess.Popen(
        ["setsid", "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i >>child.txt; sleep 0.01; done & wait"],
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as parent:
        wait_for(lambda: (work / "child.txt").exists())
        working.snapshot("both", pid=parent.pid)
        working.snapshot("files", files_only=True)
        parent.kill()
        parent.wait()
        children = working.context.catalogue.programs(working.id, boot())
        assert len(children) >= 2
        for pid in children:
            end_tree(pid)
        working.restore("both")
        before = len((work / "child.txt").read_text())
        wait_for(lambda: len((work / "child.txt").read_text()) > before)
        end_tree(parent.pid)


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_an_unrelated_process_with_the_same_pid_is_left_alone(
    working: Session, work: Path, start: Start
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    working.exec("echo later >note")
    # As if the pid had been reused: the running program is not the saved one.
    working.context.catalogue.note_programs(working.id, {pid: 1}, boot())
    with pytest.raises(EngineError, match=f"process number {pid}.*not saved by this session"):
        working.restore("early")
    process = read_process(pid)
    assert process is not None
    assert process.is_alive
    assert (work / "note").read_text() == "later\n"


def test_a_program_that_cannot_be_saved_is_refused_with_the_reason(
    waypoint: Waypoint, working: Session, work: Path, workspace: Path, start: Start
) -> None:
    inside = working.main.record.init_pid
    thread = threading.Thread(target=threading.Event().wait, args=(60,), daemon=True)
    thread.start()
    with (
        subprocess.Popen(["sleep", "100"], cwd="/") as elsewhere,
        subprocess.Popen(["unshare", "--net", "sleep", "100"], cwd=work) as apart,
    ):
        wait_for(lambda: os.readlink(f"/proc/{apart.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        for pid, reason in (
            (4_000_000, "no process 4000000$"),
            (-1, "no process -1$"),
            (2, "thread of the kernel"),
            (thread.native_id or 0, "only a thread"),
            (os.getpid(), "this very command"),
            (os.getppid(), "this very command"),
            (inside, "inside a session"),
            (elsewhere.pid, "not in the work directory"),
            (apart.pid, "has a net namespace of its own"),
        ):
            if pid == 2 and read_process(2) is None:  # a container does not show threads of the kernel
                continue
            with pytest.raises((NotFound, UsageError), match=reason):
                working.snapshot("no", pid=pid)
        elsewhere.kill()
        apart.kill()
    pid = start("away")
    working.snapshot("point")
    working.restore("point")
    with pytest.raises(UsageError, match="does not show any more"):
        working.snapshot("no", pid=pid)
    plain = waypoint.create(workspace)
    try:
        with pytest.raises(UsageError, match="no work directory"):
            plain.snapshot("no", pid=pid)
    finally:
        plain.cleanup()
    assert [saved.name for saved in working.checkpoints()] == ["point"]


FIND_PROGRAMS = """
import subprocess, sys
from pathlib import Path
from waypoint.engine.host_program import find_program
from waypoint.errors import UsageError
from waypoint.store.catalogue import Catalogue

path, session_id, work = sys.argv[1:]
session = Catalogue(Path(path)).session(session_id)
for is_leader in (False, True):
    program = subprocess.Popen(["sleep", "100"], cwd=work, start_new_session=is_leader)
    try:
        print(find_program(session, program.pid).name)
    except UsageError as error:
        print(error, error.hint, sep="; ")
"""


def test_a_program_whose_session_leader_cannot_be_seen_is_refused_with_a_hint(
    working: Session, work: Path
) -> None:
    # As for programs that process 1 of some hosts starts, or that enter a container from outside.
    # All of them end with the process 1 of their pid namespace.
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", FIND_PROGRAMS]
    arguments = [str(working.context.layout.catalogue), working.id, str(work)]
    said = subprocess.run([*inside, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert re.fullmatch(r"process \d+ \(sleep\) .*leader cannot be seen.*; .*setsid .*\nsleep\n", said)


def test_a_restore_reports_a_closed_terminal(working: Session, work: Path) -> None:
    shell, master = run_at_terminal(["/bin/sh", "-c", f"cd {work}; trap '' HUP; while :; do sleep 1; done"])
    wait_for(lambda: bool(Path(f"/proc/{shell}/task/{shell}/children").read_text()))  # it sleeps
    working.snapshot("early", pid=shell)
    os.close(master)
    end_tree(shell)
    os.waitpid(shell, 0)
    with pytest.raises(EngineError, match="closed since"):
        working.restore("early")


def test_a_program_that_cannot_be_restored_does_not_block_its_session(
    working: Session, work: Path, reaped: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    shell, master = run_at_terminal(["/bin/sh", "-c", f"cd {work}; trap '' HUP; while :; do sleep 1; done"])
    reaped.append(shell)
    wait_for(lambda: bool(Path(f"/proc/{shell}/task/{shell}/children").read_text()))  # it sleeps
    working.snapshot("early", pid=shell)

    def close_the_terminal(_operation: str, step: str) -> None:
        if step == "program":  # the program has ended by now
            os.close(master)
            raise OSError(5, "made to fail by the test", step)

    step_observers.append(close_the_terminal)
    try:
        with pytest.raises(EngineError, match="made to fail"):
            working.restore("early")
    finally:
        step_observers.remove(close_the_terminal)
    assert f"process {shell} (sh) is lost: " in caplog.text
    assert working.context.catalogue.unfinished() == []
    working.snapshot("later")


def wait_until_it_sleeps(pid: int) -> None:
    """Until then it is still the shell that forked it, with pipes to us, which cannot be saved."""
    wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")


def test_waiting_for_a_parent_to_reap_its_child_is_reported(
    working: Session,
    work: Path,
    reaped: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waypoint.session.lifecycle.host_program_endings.SILENT_S", 0.0)
    # It reaps its child only on request.
    script = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; read go; wait"
    with subprocess.Popen(
        ["setsid", "sh", "-c", script], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        stdin, stdout = parent.stdin, parent.stdout
        assert stdin is not None
        assert stdout is not None
        child = int(stdout.readline())
        wait_until_it_sleeps(child)
        reaped.append(child)
        said = f"waiting for process {parent.pid} to notice that its child {child} has ended"

        def tell() -> None:
            with suppress(AssertionError):
                wait_for(lambda: said in caplog.text)
            stdin.write("go\n")
            stdin.flush()

        telling = threading.Thread(target=tell)
        telling.start()
        try:
            working.snapshot("early", pid=child)
            working.restore("early")
        finally:
            end_tree(child)
            telling.join()
    assert said in caplog.text


def test_a_parent_that_does_not_reap_blocks_only_its_own_session(
    waypoint: Waypoint,
    working: Session,
    work: Path,
    workspace: Path,
    state_dir: Path,
    reaped: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lifecycle = "waypoint.session.lifecycle"
    monkeypatch.setattr(f"{lifecycle}.host_program.REAP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(f"{lifecycle}.host_program_endings.RECOVERY_REAP_TIMEOUT_S", 0.2)
    script = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; read go; wait; echo asked; read go"
    with subprocess.Popen(
        ["setsid", "sh", "-c", script], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until_it_sleeps(child)
        working.snapshot("early", pid=child)
        with pytest.raises(
            EngineError, match=f"process {child} has ended, but its parent, process {parent.pid}"
        ):
            working.restore("early")
        other = waypoint.create(workspace)
        with Waypoint(state_dir) as again:
            assert again.session(other.id).exec("echo fine").output == "fine\n"
            assert [operation.kind for operation in again.context.catalogue.unfinished()] == ["restore"]
        other.cleanup()
        print("go", file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "asked\n"
        reaped.append(child)
        with Waypoint(state_dir) as again:
            assert again.context.catalogue.unfinished() == []
        process = read_process(child)
        assert process is not None
        assert process.is_alive
        end_tree(child)
        parent.communicate()


def test_a_job_whose_saving_failed_at_the_end_is_restored(
    working: Session, work: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start("job")
    working.snapshot("early", pid=pid)
    # As if we had been killed right after CRIU ended the program.
    monkeypatch.setattr("waypoint.kernel.criu.foreign.repair_foreign_terminals", lambda _images: None)
    before = last_step(work)
    with failing_at("program"), pytest.raises(EngineError, match="made to fail"):
        working.restore("early")
    assert_continues_from(work, before)


def test_a_failed_restore_of_a_dead_branch_leaves_the_program_its_files(
    working: Session, work: Path, start: Start
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    os.kill(working.main.record.init_pid, signal.SIGKILL)
    wait_for(lambda: not working.main.is_running())
    before = last_step(work)
    with failing_at("program"), pytest.raises(EngineError, match="made to fail"):
        working.restore("early")
    assert_continues_from(work, before)


def test_files_written_on_the_host_after_a_killed_restore_are_in_the_session(
    working: Session, work: Path, start: Start, state_dir: Path
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    killed = 0
    for number in range(4, 16):
        end_tree(pid)  # so there is no program to restore, and no sign that there was one
        if not killed_at(state_dir, number, "restore", working.id, "early"):
            break
        killed += 1
        recover(working, state_dir)
        (work / f"note-{number}").touch()
        assert working.exec(f"ls note-{number}").exit_code == 0
    assert killed >= 5


def test_a_work_directory_that_cannot_be_mounted_does_not_block_the_session(
    waypoint: Waypoint, workspace: Path, tmp_path: Path, leaves_nothing_behind: None
) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    session = waypoint.create(workspace, work_dir=directory)
    session.snapshot("early")
    detach_all(directory)
    directory.rmdir()
    directory.write_text("in the way")
    with pytest.raises(EngineError, match=f"cannot be shown at {directory}"):
        session.restore("early")
    # reported each time, until somebody fixes it
    with pytest.raises(EngineError, match=f"cannot be shown at {directory}"):
        session.snapshot("later")
    session.cleanup(force=True)
    assert directory.read_text() == "in the way"


def recover(session: Session, state_dir: Path) -> None:
    """Recover as the next command does, once CRIU no longer works for a killed caller."""
    with locked(session.context.branch_lock(session.id, "main"), what="main"):
        pass
    with Waypoint(state_dir) as again:
        assert again.context.catalogue.unfinished() == []


@contextmanager
def failing_at(wanted: str) -> Iterator[None]:
    def fail(_operation: str, step: str) -> None:
        if step == wanted:
            raise OSError(5, "made to fail by the test", step)

    step_observers.append(fail)
    try:
        yield
    finally:
        step_observers.remove(fail)


def test_a_failure_at_any_step_keeps_program_and_files_as_they_were(
    working: Session, work: Path, start: Start, state_dir: Path
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    early = saved_step(working)
    wait_for(lambda: step_of(work) > early + 100)
    reached = []
    for number in range(4, 16):  # those before are of a files-only checkpoint, too
        before = last_step(work)
        (work / "later").touch()
        with fail_at(number) as failure:
            try:
                working.restore("early")
            except EngineError:
                assert failure.reached
        if not failure.reached:
            break
        reached.append(failure.reached)
        if failure.reached == "restore/retire":
            Waypoint(state_dir).close()
            assert working.context.catalogue.unfinished() == []
            assert not (work / "later").exists()
            continue
        assert_continues_from(work, before)
    assert [step.rpartition("/")[2] for step in reached][-5:] == [
        "end",
        "work",
        "program",
        "publish",
        "retire",
    ]


def test_the_next_command_repairs_what_a_killed_restore_left(
    working: Session, work: Path, start: Start, state_dir: Path
) -> None:
    pid = start("away")
    working.snapshot("early", pid=pid)
    early = saved_step(working)
    killed = 0
    for number in range(4, 16):  # those before are of a files-only checkpoint, too
        wait_for(lambda: step_of(work) > early + 100)
        before = last_step(work)
        (work / "later").touch()
        if not killed_at(state_dir, number, "restore", working.id, "early"):
            break
        killed += 1
        recover(working, state_dir)
        process = read_process(pid)
        assert process is not None
        assert "waypoint" not in Path(f"/proc/{pid}/cgroup").read_text()
        now = last_step(work)
        assert now >= before or not (work / "later").exists()
        assert_continues_from(work, now)
    assert killed >= 5
