"""The Firecracker driver against a stub of its API: requests, their order, their faults. No machine runs here.

See tests/support/firecracker_stub.py for what that proves and what it does not.
"""

import io
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from statefork import EnvironmentManager, create_env_manager, open_env_manager
from statefork.backend import Availability
from statefork.backends.microvm import firecracker, firecracker_attach
from statefork.backends.microvm.driver import DISK, Kernel, Shape
from statefork.backends.microvm.firecracker import API_SOCKET, FirecrackerDriver, launch
from statefork.backends.microvm.firecracker_api import FirecrackerApi
from statefork.backends.microvm.process import VmProcess, start_in_background
from statefork.backends.microvm.program import run_program
from statefork.errors import BackendFailed, BackendUnavailable, CommandTimedOut, WrongUse
from statefork.published_managers import FireAttachManager
from support.firecracker_stub import install_stub
from support.waiting import wait_for
from waypoint.errors import ToolTimedOut
from waypoint.kernel.processes.process_tree import read_process
from waypoint.kernel.processes.programs import Popen, spawn
from waypoint.shell.client import ShellClient

SHAPE = Shape(memory_mb=256, vcpus=2)


class Bench:
    """A driver that runs the stub, files to boot, and the processes to end afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = install_stub(directory)
        self.driver = FirecrackerDriver(os.fspath(self.program))
        (directory / "vmlinux").touch()
        (directory / "initramfs").touch()
        self.kernel = Kernel(vmlinux=directory / "vmlinux", modules=directory, version="1")
        self.processes: list[VmProcess] = []

    def machine_directory(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir()
        return path

    def boot(self, name: str) -> Path:
        machine_directory = self.machine_directory(name)
        (machine_directory / DISK).write_text(f"disk of {name}")
        self.processes.append(
            self.driver.boot(machine_directory, self.kernel, self.directory / "initramfs", SHAPE)
        )
        return machine_directory

    def load(self, image: Path, name: str) -> Path:
        machine_directory = self.machine_directory(name)
        self.processes.append(self.driver.load(image, machine_directory, SHAPE))
        return machine_directory

    def connect(self, machine_directory: Path) -> ShellClient:
        line = self.driver.connect(machine_directory, 20.0)
        line.open(20.0, renew=True)
        return ShellClient(line)

    def end(self) -> None:
        """Kill the stubs, and the init each has started, which stays in the stub's process group."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def bench() -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="firecracker-"))
    made = Bench(directory)
    yield made
    made.end()
    shutil.rmtree(directory)


def requests(machine_directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in (machine_directory / "requests").read_text().splitlines()]


def test_a_machine_is_fully_configured_before_it_starts(bench: Bench) -> None:
    machine_directory = bench.boot("one")
    sent = requests(machine_directory)
    assert [path for _, path, _ in sent] == [
        "/machine-config",
        "/boot-source",
        "/drives/disk",
        "/vsock",
        "/actions",
    ]
    bodies = {path: body for _, path, body in sent}
    assert bodies["/machine-config"] == {"vcpu_count": 2, "mem_size_mib": 256}
    assert bodies["/boot-source"]["boot_args"].endswith("-- machine --vsock 1024")
    assert bodies["/drives/disk"]["path_on_host"] == DISK, "the name must be valid in every clone's directory"
    assert bodies["/actions"] == {"action_type": "InstanceStart"}


def test_commands_reach_init_through_the_vsock_handshake(bench: Bench) -> None:
    machine_directory = bench.boot("one")
    output = io.BytesIO()
    command = ("/bin/sh", "-c", "cat; echo oops >&2; exit 3")
    assert run_program(
        lambda: bench.connect(machine_directory), command, io.BytesIO(b"\xc0\xdb\n\xdc"), output
    ) == (
        3,
        "oops",
    )
    assert output.getvalue() == b"\xc0\xdb\n\xdc"


def test_a_snapshot_is_taken_while_paused_together_with_the_disk(bench: Bench) -> None:
    machine_directory, image = bench.boot("one"), bench.machine_directory("image")
    bench.driver.save(machine_directory, image)
    sent = requests(machine_directory)[5:]
    assert [(method, path) for method, path, _ in sent] == [
        ("PATCH", "/vm"),
        ("PUT", "/snapshot/create"),
        ("PATCH", "/vm"),
    ]
    assert [body.get("state") for _, _, body in sent] == ["Paused", None, "Resumed"]
    assert sent[1][2]["snapshot_type"] == "Full"
    assert (image / DISK).read_text() == "disk of one"


def test_clones_are_loaded_and_resumed_while_their_origin_runs(bench: Bench) -> None:
    machine_directory, image = bench.boot("one"), bench.machine_directory("image")
    bench.driver.save(machine_directory, image)
    clones = [bench.load(image, name) for name in ("two", "three")]
    for clone in clones:
        [(method, path, body)] = requests(clone)
        assert (method, path, body["resume_vm"]) == ("PUT", "/snapshot/load", True)
        assert body["mem_backend"] == {"backend_type": "File", "backend_path": os.fspath(image / "memory")}
        assert (clone / DISK).read_text() == "disk of one"
    for each in (machine_directory, *clones):
        with bench.connect(each) as client:
            client.ping()


def test_a_failed_snapshot_leaves_the_machine_running(bench: Bench) -> None:
    machine_directory = bench.boot("one")
    with pytest.raises(BackendFailed, match=r"No such file or directory \(HTTP status 400\)"):
        bench.driver.save(machine_directory, bench.directory / "nowhere")
    assert [body["state"] for _, path, body in requests(machine_directory) if path == "/vm"] == [
        "Paused",
        "Resumed",
    ]


def test_a_machine_that_was_left_paused_is_resumed(bench: Bench) -> None:
    machine_directory = bench.boot("one")
    api = FirecrackerApi(machine_directory, API_SOCKET)
    api.patch("/vm", {"state": "Paused"})
    for _ in range(2):
        bench.driver.resume(machine_directory)
        assert api.get("/")["state"] == "Running"


def test_a_machine_that_cannot_be_loaded_is_ended(bench: Bench) -> None:
    machine_directory, image = bench.boot("one"), bench.machine_directory("image")
    bench.driver.save(machine_directory, image)
    (image / "memory").unlink()
    clone = bench.machine_directory("two")
    with pytest.raises(BackendFailed, match="memory"):
        bench.driver.load(image, clone, SHAPE)
    with pytest.raises(OSError, match="refused"):
        FirecrackerApi(clone, API_SOCKET).server_pid()


@pytest.mark.parametrize(
    ("method", "path", "body", "fault"),
    [
        ("put", "/vm", {"state": "Paused"}, "Invalid request method"),
        ("put", "/vsock", {"guest_cid": 3}, "missing field `uds_path`"),
        ("put", "/vsock", {"guest_cid": "3", "uds_path": "v"}, "invalid type"),
        ("put", "/actions", {"action_type": "InstanceStart"}, "without kernel"),
        ("patch", "/vm", {"state": "Paused"}, "before starting"),
        ("put", "/snapshot/create", {"snapshot_path": "s", "mem_file_path": "m"}, "unavailable"),
    ],
)
def test_every_fault_is_reported_in_firecrackers_own_words(
    bench: Bench, method: str, path: str, body: dict[str, object], fault: str
) -> None:
    machine_directory = bench.machine_directory("one")
    process, api = launch(os.fspath(bench.program), machine_directory, API_SOCKET, machine_directory)
    bench.processes.append(process)
    with pytest.raises(BackendFailed, match=fault):
        getattr(api, method)(path, body)


def test_a_failed_start_of_firecracker_is_reported_in_its_own_words(bench: Bench) -> None:
    bench.program.write_text("#!/bin/sh\necho bad CPU template >&2; exit 1\n")
    with pytest.raises(BackendFailed, match="bad CPU template"):
        bench.boot("one")


def test_a_firecracker_whose_api_never_answers_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.program.write_text("#!/bin/sh\nexec sleep 1000\n")

    def start_and_wait(command: Sequence[str], notes: Path) -> None:
        start_in_background(command, notes)
        wait_for(lambda: VmProcess.begun(notes) is not None)

    monkeypatch.setattr(firecracker, "start_in_background", start_and_wait)
    monkeypatch.setattr(firecracker, "START_TIMEOUT_S", 0.5)
    with pytest.raises(BackendFailed, match="does not answer"):
        bench.boot("one")
    assert not is_running(int((bench.directory / "one/pid").read_text()))


def test_a_machine_is_recorded_before_it_answers_and_not_confused_with_another_process(bench: Bench) -> None:
    """So a killed caller leaves a machine that is found, and no other process is taken for it."""
    bench.program.write_text("#!/bin/sh\nexec sleep 1000\n")
    machine_directory = bench.machine_directory("one")
    start_in_background([os.fspath(bench.program)], machine_directory)

    def is_known() -> bool:
        process = VmProcess.noted_in(machine_directory)
        bench.processes += [] if process is None else [process]
        return process is not None

    wait_for(is_known)
    (machine_directory / "pid").write_text(f"{os.getpid()}\n")
    assert VmProcess.noted_in(machine_directory) is None


def test_a_start_that_times_out_is_reported_as_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(command: Sequence[str], *, timeout_s: float, **_: object) -> None:
        raise ToolTimedOut(command, timeout_s)

    monkeypatch.setattr("statefork.backends.microvm.process.run_tool", hang)
    with pytest.raises(BackendFailed, match="setsid"):
        bench.boot("one")


def test_the_identity_of_a_driver_includes_its_version(bench: Bench) -> None:
    assert bench.driver.identity() == "Firecracker v1.12.0"


# -- the published methods


def test_without_firecracker_or_kvm_both_methods_report_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firecracker, "CLEAN_ENV", {"PATH": os.fspath(tmp_path)})
    for method, options in (("firecracker_build", {}), ("firecracker_attach", {"pid": 1, "key": "k"})):
        with pytest.raises(BackendUnavailable, match="no firecracker program on the PATH") as failure:
            create_env_manager(method, state_dir=tmp_path, **options)
        assert "releases" in failure.value.hint
    install_stub(tmp_path)
    monkeypatch.setattr(firecracker, "device_problem", lambda: None)
    monkeypatch.setattr(firecracker, "module_problem", lambda: "KVM here boots no stock kernel")
    with pytest.raises(BackendUnavailable, match="KVM here boots no stock kernel"):
        create_env_manager("firecracker_build", state_dir=tmp_path)


@pytest.mark.parametrize("given", [{}, {"pid": 1}, {"key": "k"}])
def test_attach_needs_a_pid_and_a_key(given: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        create_env_manager("firecracker_attach", state_dir=tmp_path, **given)


@pytest.fixture
def attached(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[EnvironmentManager]:
    """A machine that was made outside StateFork, with programs that stay on the host instead of ssh and scp."""
    machine_directory = bench.boot("theirs")
    for name, text in {"ssh": 'for last; do :; done; exec sh -c "$last"', "scp": "exec cp -r"}.items():
        (bench.directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (bench.directory / name).chmod(0o755)
    monkeypatch.setattr(
        firecracker_attach.FirecrackerAttachBackend, "probe_with", classmethod(lambda *_: AVAILABLE)
    )
    manager = create_env_manager(
        "firecracker_attach",
        state_dir=bench.directory / "state",
        pid=bench.processes[0].pid,
        key="key",
        tap_dev="lo",
        checkpoint_dir=os.fspath(bench.directory / "checkpoints"),
        vm_dir=os.fspath(machine_directory),
        fire_binary=os.fspath(bench.program),
        api_socket=os.fspath(machine_directory / API_SOCKET),
        ssh=os.fspath(bench.directory / "ssh"),
    )
    yield manager
    if not manager.is_cleaned_up:
        bench.processes.append(VmProcess.from_handle(manager.core.branch().instance.handle))
        manager.cleanup()


AVAILABLE = Availability(is_available=True)


def test_an_attached_machine_runs_commands_over_ssh(attached: EnvironmentManager) -> None:
    assert isinstance(attached, FireAttachManager)
    assert attached.exec_command("echo out; echo err >&2; exit 4") == (4, "out\n", "err\n")
    assert attached.exec_command(["printf", "%s|", "a b"]) == (0, "a b|", "")
    assert attached.exec_command("echo $$; echo $((1 + 1))")[1].splitlines()[1] == "2"
    assert attached.exec_command("exit 255")[0] == -1, "with 255, ssh reports its own failure"


def test_a_timeout_ends_a_command_inside_an_attached_machine(
    attached: EnvironmentManager, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for ssh leaves the command running when it is killed, as sshd does."""
    (bench.directory / "ssh").write_text('#!/bin/sh\nfor last; do :; done; setsid -w sh -c "$last"\n')
    noted = bench.directory / "noted"

    def begun(command: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes]) -> "Popen[bytes]":
        client = spawn(command, stdout=stdout, stderr=stderr)
        wait_for(lambda: noted.exists() and noted.read_text().endswith("\n"))
        return client

    monkeypatch.setattr(firecracker_attach, "spawn", begun)
    with pytest.raises(CommandTimedOut) as late:
        attached.core.run(f"echo begun; sleep 1000 & echo $! >{noted}; sleep 1000", timeout_s=0.5)
    assert late.value.output == "begun\n"
    pid = int(noted.read_text())
    wait_for(lambda: not is_running(pid))
    assert attached.exec_command("echo here")[1] == "here\n"


def is_running(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.is_alive


def test_an_attached_machine_is_saved_and_restored_into_a_new_process(
    attached: EnvironmentManager, bench: Bench
) -> None:
    disk = bench.directory / "theirs" / DISK
    saved = attached.snapshot()
    assert saved is not None
    disk.write_text("changed")
    shutil.rmtree(bench.directory / "theirs/guest")
    (bench.directory / "theirs/vsock").unlink()
    assert attached.restore(saved)
    assert disk.read_text() == "disk of theirs"
    assert not bench.processes[0].is_alive()
    pid = attached.core.backend.process_id(attached.core.branch().instance)
    assert pid == FirecrackerApi(bench.directory / "theirs", API_SOCKET).server_pid()


def test_an_attached_machine_is_left_to_its_owner_and_keeps_its_history(
    attached: EnvironmentManager, bench: Bench
) -> None:
    saved = attached.snapshot()
    attached.core.leave()
    with open_env_manager(attached.core.id, state_dir=bench.directory / "state") as again:
        assert again.list_snapshots() == [saved]
    assert bench.processes[0].is_alive()
    assert not list((bench.directory / "checkpoints").iterdir())


def test_an_attached_machine_whose_snapshot_was_killed_runs_again_at_the_next_command(
    attached: EnvironmentManager, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FirecrackerApi(bench.directory / "theirs", API_SOCKET)

    def killed(*_: object) -> None:
        api.patch("/vm", {"state": "Paused"})
        raise KeyboardInterrupt

    with monkeypatch.context() as cut_off, pytest.raises(KeyboardInterrupt):
        cut_off.setattr(firecracker_attach, "save_snapshot", killed)
        attached.core.snapshot()
    assert api.get("/")["state"] == "Paused"
    assert attached.exec_command("echo here")[1] == "here\n"
    assert api.get("/")["state"] == "Running"


def test_memory_is_not_saved_to_a_directory_others_can_write(
    attached: EnvironmentManager, bench: Bench
) -> None:
    kept = bench.directory / "checkpoints"
    shutil.rmtree(kept)
    kept.symlink_to(bench.machine_directory("elsewhere"))
    with pytest.raises(WrongUse, match="may be changed by others") as failure:
        attached.core.snapshot()
    assert "checkpoint_dir=" in failure.value.hint
    kept.unlink()
    kept.mkdir()
    kept.chmod(0o777)
    with pytest.raises(WrongUse, match="may be changed by others"):
        attached.core.snapshot()
    kept.chmod(0o755)
    attached.core.snapshot()


def test_a_pid_that_does_not_serve_the_socket_is_refused(attached: EnvironmentManager, bench: Bench) -> None:
    with pytest.raises(WrongUse, match="belongs to process"):
        create_env_manager(
            "firecracker_attach",
            state_dir=bench.directory / "other",
            pid=os.getpid(),
            key="key",
            api_socket=os.fspath(bench.directory / "theirs" / API_SOCKET),
        )
