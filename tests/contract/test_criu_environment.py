"""Plain CRIU keeps the contract for processes, memory, shell, terminal and sockets. Files are the host's own."""

import dataclasses
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from contract.environment import EnvironmentContract, run
from statefork import AlwaysFalseDecider, EnvironmentManager, create_env_manager, open_env_manager
from statefork.backends.processes import criu_host
from statefork.errors import BackendFailed, BackendUnavailable, ReplayFailed, Unsupported, WrongUse
from statefork.published_managers import CRIUAttachManager, CRIUBuildManager
from support.holdings import held_by
from support.waiting import wait_for
from waypoint.kernel.processes.process_tree import read_process
from waypoint.kernel.processes.programs import Popen, spawn

pytestmark = pytest.mark.kernel


@contextmanager
def clean_environment(directory: Path) -> Iterator[CRIUBuildManager]:
    """An environment that must leave nothing behind."""
    with make(directory) as manager:
        yield manager
        tag = manager.core.backend.tag
    assert held_by(tag) == []
    assert not (directory / "state" / manager.core.id).exists()
    assert list((directory / "work").iterdir()) == []


@pytest.fixture(scope="class")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentManager]:
    with clean_environment(tmp_path_factory.mktemp("criu")) as manager:
        yield manager


@pytest.fixture
def env(tmp_path: Path) -> Iterator[EnvironmentManager]:
    with clean_environment(tmp_path) as manager:
        yield manager


def make(tmp_path: Path, **options: object) -> CRIUBuildManager:
    directories = {"work_dir": tmp_path / "work", "state_dir": tmp_path / "state"}
    made = create_env_manager("criu_build", **{**directories, **options})
    assert isinstance(made, CRIUBuildManager)
    return made


@pytest.fixture(autouse=True)
def removes_what_the_contract_writes() -> Iterator[None]:
    """The probes write files on the host; a killed run may have left some."""
    remove_files()
    yield
    remove_files()


def remove_files() -> None:
    directory = Path("/var/tmp")
    for name in ("step", "note", "copied"):
        (directory / name).unlink(missing_ok=True)
    for name in ("task", "copies"):
        shutil.rmtree(directory / name, ignore_errors=True)


class TestCriu(EnvironmentContract):
    pass


def test_the_files_are_the_hosts_own(env: EnvironmentManager, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from the host\n")
    assert run(env, f"cat {tmp_path}/note; echo from inside > {tmp_path}/answer") == "from the host\n"
    assert (tmp_path / "answer").read_text() == "from inside\n"
    assert run(env, "pwd") == f"{os.getcwd()}\n"


def test_new_entries_of_the_root_directory_stay_in_the_environment(env: EnvironmentManager) -> None:
    saved = env.core.snapshot().snapshot_id
    run(env, "mkdir /made-inside && echo x > /made-inside/file")
    [fork] = env.core.fork(saved)
    assert run(env, "cat /made-inside/file", fork.id) == "x\n"
    assert not Path("/made-inside").exists()


def test_two_environments_can_use_the_same_pids_and_ports_and_end_separately(
    env: EnvironmentManager, tmp_path: Path
) -> None:
    listen = "python3 -m http.server 18080 >/dev/null 2>&1 & sleep 98765 >/dev/null 2>&1 &"
    with make(tmp_path) as other:
        for each in (env, other):
            run(each, listen)
            run(each, "x=$!")
        saved = other.snapshot()
        assert saved is not None
        assert other.restore(saved)
        assert run(env, "jobs | grep -c Running") == "2\n"
    assert run(env, "kill -0 $x && jobs | grep -c Running") == "2\n"


def test_another_process_can_continue_an_environment(env: EnvironmentManager, tmp_path: Path) -> None:
    run(env, "x=kept")
    saved = env.snapshot()
    run(env, "x=changed")
    env.core.leave()
    with open_env_manager(env.core.id, state_dir=tmp_path / "state", strict=True) as again:
        assert saved is not None
        assert run(again, "echo $x") == "changed\n"
        assert again.restore(saved)
        assert run(again, "echo $x") == "kept\n"
        instance = again.core.branch().instance
        assert again.core.backend.is_alive(instance)
        assert again.core.backend.process_id(instance) is not None


def test_the_command_option_starts_a_background_job(tmp_path: Path) -> None:
    with make(tmp_path, command=["sh", "-c", "echo up; exec sleep 98765"]) as env:
        assert run(env, "jobs | grep -c sleep") == "1\n"
        wait_for(lambda: [log.read_text() for log in (tmp_path / "work").glob("*/command.log")] == ["up\n"])


def test_a_restore_reports_a_changed_open_file_and_the_branch_keeps_running(
    env: EnvironmentManager, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    run(env, f"exec 7>{log}; echo one >&7; x=1")
    saved = env.core.snapshot().snapshot_id
    run(env, "echo two >&7; x=2")
    with pytest.raises(BackendFailed, match="bad size") as caught:
        env.core.restore(saved)
    assert "keeps no files" in caught.value.hint
    assert run(env, "echo $x") == "2\n"
    log.write_text("one\n")
    env.core.restore(saved)
    assert run(env, "echo $x; echo three >&7") == "1\n"
    assert log.read_text() == "one\nthree\n"


def test_the_end_of_the_shell_is_reported_and_a_restore_brings_it_back(env: EnvironmentManager) -> None:
    saved = env.core.snapshot().snapshot_id
    for command in ("exit 4", "true"):
        with pytest.raises(BackendFailed, match="the shell of") as caught:
            env.core.run(command)
        assert caught.value.hint == "restore a snapshot"
    env.core.restore(saved)
    assert run(env, "echo back") == "back\n"


def test_a_work_dir_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(0o777)
    with pytest.raises(WrongUse, match="may be changed by others"):
        make(tmp_path)
    assert list((tmp_path / "state").iterdir()) == []


def test_without_criu_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu_host, "_build", lambda: None)
    for method, options in (("criu_build", {}), ("criu_attach", {"target_pid": os.getpid()})):
        with pytest.raises(BackendUnavailable, match="CRIU") as caught:
            create_env_manager(method, state_dir=tmp_path, **options)
        assert "waypoint setup" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


COUNTER = """
import os, socket, subprocess, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
child = subprocess.Popen(["sleep", "98765"])
count = 0
while True:
    peer, _ = server.accept()
    count += 1
    peer.sendall(f"{count} {os.getpid()} {child.pid} {child.poll()}".encode())
    peer.close()
"""


class TestAttach:
    @pytest.fixture
    def port(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
            return port

    @pytest.fixture
    def process(self, port: int, tmp_path: Path) -> Iterator["Popen[bytes]"]:
        command = (sys.executable, "-c", COUNTER, str(port))
        with self.started(command, tmp_path / "log") as process:
            wait_for(lambda: is_open(port))
            yield process

    @contextmanager
    def started(self, command: tuple[str, ...], log: Path) -> Iterator["Popen[bytes]"]:
        """A separate process tree that does not outlive the test, whatever its parent is by then."""
        with open(log, "wb") as out:
            process = spawn(command, stdout=out, stderr=out)
        yield process
        kill_session(process.pid)
        process.wait(10)

    @pytest.fixture
    def env(self, process: "Popen[bytes]", tmp_path: Path) -> Iterator[CRIUAttachManager]:
        with attached(process.pid, tmp_path) as manager:
            yield manager

    def test_a_restore_brings_back_memory_pids_and_port(
        self, env: CRIUAttachManager, process: "Popen[bytes]", port: int
    ) -> None:
        first = ask(port)
        saved = env.snapshot()
        assert saved is not None
        assert ask(port) == first.replace("2 ", "3 ", 1), "it does not keep running"
        for _ in range(2):
            assert env.restore(saved)
            assert ask(port) == first.replace("2 ", "3 ", 1), "it was not restored"
        assert not hasattr(env, "fork")
        with pytest.raises(Unsupported):
            env.core.fork(saved)

    def test_attaching_again_continues_the_history_of_the_same_process(
        self, env: CRIUAttachManager, process: "Popen[bytes]", tmp_path: Path
    ) -> None:
        saved = env.snapshot()
        env.core.leave()
        with attached(process.pid, tmp_path) as again:
            assert again.core.id == env.core.id
            assert again.list_snapshots() == [saved]
            main = again.core.branch()
            earlier = {**main.instance.handle, "started": 1}
            main.instance = dataclasses.replace(main.instance, handle=earlier)
            again.core.leave()
            with attached(process.pid, tmp_path) as other:
                assert other.list_snapshots() == [], "another process had this pid before"
        open_env_manager(env.core.id, state_dir=tmp_path / "state").cleanup()

    def test_cleanup_leaves_the_process_running(
        self, env: CRIUAttachManager, port: int, tmp_path: Path
    ) -> None:
        env.snapshot()
        env.cleanup()
        assert ask(port)
        assert list((tmp_path / "state").iterdir()) == []

    def test_commands_run_as_new_processes_next_to_the_attached_one(
        self, env: CRIUAttachManager, process: "Popen[bytes]", tmp_path: Path
    ) -> None:
        here = os.readlink(f"/proc/{process.pid}/cwd")
        assert env.exec_command("pwd; echo err >&2; exit 4") == (4, f"{here}\n", "err\n")
        assert env.exec_command(["printf", "%s", "a b"])[:2] == (0, "a b")
        env.strict = False
        assert env.exec_command("sleep 1000", timeout=0.3)[0] == -2
        (tmp_path / "file").write_text("content")
        assert env.copy_in(tmp_path / "file", f"{tmp_path}/copied")
        assert env.copy_out(f"{tmp_path}/copied", tmp_path / "back")
        assert (tmp_path / "back").read_text() == "content"

    def test_a_dead_process_is_reported_and_can_be_restored(
        self, env: CRIUAttachManager, process: "Popen[bytes]", port: int
    ) -> None:
        first = ask(port)
        saved = env.core.snapshot().snapshot_id
        kill_session(process.pid)
        process.wait(10)
        with pytest.raises(BackendFailed, match=f"process {process.pid} has ended"):
            env.core.run("true")
        with pytest.raises(BackendFailed):
            env.core.snapshot()
        env.core.restore(saved)
        assert ask(port) == first.replace("2 ", "3 ", 1)

    def test_a_failed_restore_brings_back_the_running_process(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done"
        with self.started(("sh", "-c", script), log) as process, attached(process.pid, tmp_path) as env:
            wait_for(lambda: log.read_text().count("\n") > 1)
            saved = env.core.snapshot().snapshot_id
            before = log.read_text().count("\n")
            wait_for(lambda: log.read_text().count("\n") > before + 1)
            with pytest.raises(BackendFailed, match="bad size"):
                env.core.restore(saved)
            reached = log.read_text().count("\n")
            wait_for(lambda: log.read_text().count("\n") > reached)
            numbers = [int(line) for line in log.read_text().split()]
            assert numbers == list(range(1, len(numbers) + 1)), "it does not continue where it was"
            assert env.core.run("echo here").output == "here\n", "it is no longer attached"
            assert env.core.backend.is_still(env.core.branch().instance)

    def test_another_process_with_the_same_pid_is_left_alone(
        self, env: CRIUAttachManager, process: "Popen[bytes]", port: int
    ) -> None:
        saved = env.core.snapshot().snapshot_id
        before = ask(port)
        main = env.core.branch()
        # As after a restart of the host: the attached process had this pid at another time.
        main.instance = dataclasses.replace(main.instance, handle={**main.instance.handle, "started": 1})
        with pytest.raises(BackendFailed, match=f"pid {process.pid} is in use") as failure:
            env.core.restore(saved)
        assert "end it" in failure.value.hint
        assert process.poll() is None
        assert ask(port) == before.replace("2 ", "3 ", 1)

    def test_leftovers_of_a_killed_restore_do_not_block_the_next(
        self, env: CRIUAttachManager, port: int
    ) -> None:
        saved = env.core.snapshot().snapshot_id
        (env.core.backend.home / "fallback/criu").mkdir(parents=True)
        env.core.restore(saved)
        assert ask(port)

    def test_a_failed_replay_brings_back_the_running_process(
        self, env: CRIUAttachManager, port: int, tmp_path: Path
    ) -> None:
        env.core.snapshot()
        env.core.decider = AlwaysFalseDecider()
        mark = tmp_path / "mark"
        env.core.run(f"test -e {mark}")
        virtual = env.core.snapshot().snapshot_id
        before = ask(port)
        mark.touch()
        with pytest.raises(ReplayFailed):
            env.core.restore(virtual)
        assert env.core.run("true").exit_code == 0
        count, *rest = ask(port).split()
        assert [str(int(count) - 1), *rest] == before.split(), "it does not continue where it was"
        mark.unlink()
        env.core.restore(virtual)
        assert int(ask(port).split()[0]) <= int(before.split()[0])

    def test_a_terminal_that_others_hold_is_refused_with_a_hint(self, tmp_path: Path) -> None:
        master, slave = os.openpty()
        process = spawn(("sleep", "1000"), stdout=slave, stderr=slave)
        os.close(slave)
        try:
            with (
                attached(process.pid, tmp_path) as env,
                pytest.raises(BackendFailed, match="terminal") as caught,
            ):
                env.core.snapshot()
            assert "setsid" in caught.value.hint
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
            os.close(master)

    def test_a_work_dir_that_others_can_write_is_refused(
        self, process: "Popen[bytes]", tmp_path: Path
    ) -> None:
        options = {"target_pid": process.pid, "state_dir": tmp_path / "state", "work_dir": tmp_path / "work"}
        (tmp_path / "work").mkdir()
        (tmp_path / "work").chmod(0o777)
        with pytest.raises(WrongUse, match="may be changed by others") as failure:
            create_env_manager("criu_attach", **options)
        assert "work_dir=" in failure.value.hint
        (tmp_path / "work").chmod(0o755)
        with create_env_manager("criu_attach", **options) as env:
            saved = env.core.snapshot().snapshot_id
            [saved_directory] = (tmp_path / "work").iterdir()
            assert saved_directory.stat().st_mode & 0o777 == 0o700
            env.core.restore(saved)
        assert list((tmp_path / "work").iterdir()) == []

    def test_a_missing_process_is_reported_by_pid(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError):
            create_env_manager("criu_attach", state_dir=tmp_path / "state")
        with pytest.raises(BackendFailed, match="no process 4194304"):
            attached(4194304, tmp_path)
        assert list((tmp_path / "state").iterdir()) == []


def attached(pid: int, tmp_path: Path) -> CRIUAttachManager:
    made = create_env_manager("criu_attach", target_pid=pid, state_dir=tmp_path / "state", strict=True)
    assert isinstance(made, CRIUAttachManager)
    return made


def is_open(port: int) -> bool:
    try:
        ask(port)
    except ConnectionRefusedError:
        return False
    return True


def ask(port: int) -> str:
    """Return its answer, read to the end: by then it has closed the connection, so no snapshot holds one."""
    with socket.create_connection(("127.0.0.1", port), 30) as peer:
        return b"".join(iter(lambda: peer.recv(100), b"")).decode()


def kill_session(leader: int) -> None:
    """Kill the session of ``leader``; a restored one has the same session id."""
    for entry in os.listdir("/proc"):
        process = read_process(int(entry)) if entry.isdigit() else None
        if process is not None and process.session == leader:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
