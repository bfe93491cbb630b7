"""MicroVMs keep the contract, on QEMU for real: with KVM where that boots a stock kernel, else emulated.

All tests share one state directory, so that a machine is booted once and then cloned. Firecracker needs what this
kind of host does not have, so it is tested against a stub in tests/unit/test_firecracker_driver.py.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from contract.environment import EnvironmentContract, discard_other_branches, run
from contract.machines import copy_busybox, machines_below, new_manager, state_directory
from statefork import ForkableEnvironmentManager, create_env_manager, open_env_manager
from statefork.backends.microvm.accelerator import known_verdict
from statefork.backends.microvm.backend import MicrovmBackend
from statefork.backends.microvm.driver import DISK
from statefork.backends.microvm.line import FLAG, Line
from statefork.backends.microvm.qemu import PORT, QemuDriver
from statefork.backends.microvm.sockets import connect_in
from statefork.errors import BackendFailed, BackendUnavailable, WrongUse
from support.waiting import wait_for
from waypoint.shell.protocol import encode_run

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    with state_directory() as path:
        yield path


@pytest.fixture(scope="module")
def shared(state: Path) -> Iterator[ForkableEnvironmentManager]:
    with new_manager(state) as manager:
        yield manager


@pytest.fixture
def env(shared: ForkableEnvironmentManager) -> Iterator[ForkableEnvironmentManager]:
    yield shared
    discard_other_branches(shared)


def machine_directory(env: ForkableEnvironmentManager) -> Path:
    backend = env.core.backend
    assert isinstance(backend, MicrovmBackend)
    return backend.machine_directory(env.core.branch().instance)


def pid_of(env: ForkableEnvironmentManager) -> int:
    pid = env.core.backend.process_id(env.core.branch().instance)
    assert pid is not None
    return pid


class TestMicrovm(EnvironmentContract):
    def end(self, env: ForkableEnvironmentManager) -> None:  # type: ignore[override]
        os.kill(pid_of(env), signal.SIGKILL)
        wait_for(lambda: not env.core.backend.is_alive(env.core.branch().instance))


# -- machines


def test_environments_are_clones_of_one_booted_machine(env: ForkableEnvironmentManager, state: Path) -> None:
    with new_manager(state) as other:
        # Both have what the one boot made; what was made later is different in each.
        assert len({run(each, "stat -c %z /.waypoint/sock") for each in (env, other)}) == 1
        assert len({run(each, "cat /proc/sys/kernel/random/boot_id") for each in (env, other)}) == 2
        assert pid_of(env) != pid_of(other)
        assert {manager.core.id for manager in (env, other)} <= {entry.name for entry in state.iterdir()}


def test_the_verdict_on_kvm_is_found_once_and_kept(env: ForkableEnvironmentManager, state: Path) -> None:
    handle = env.core.branch().instance.handle
    verdict = known_verdict(state / "microvm")
    if verdict is None:
        assert not Path("/dev/kvm").exists()
    assert handle["accelerator"] == ("kvm" if verdict is not None and verdict.works else "tcg")


def test_every_clone_has_its_own_random_numbers_and_the_right_time(env: ForkableEnvironmentManager) -> None:
    saved = env.snapshot()
    assert saved is not None
    before = time.time()
    forks = env.fork(saved, n=2)
    look = "cat /proc/sys/kernel/random/uuid; date +%s"
    seen = [run(env, look, branch.id).split() for branch in forks]
    assert seen[0][0] != seen[1][0]
    now = time.time()
    for _, clock in seen:
        # In an emulated machine, a clock that was set correctly then runs too fast, but not twice as fast.
        assert int(before) <= int(clock) <= now + (now - before)


def test_the_session_sees_only_its_own_processes_and_cannot_end_the_connection(
    env: ForkableEnvironmentManager,
) -> None:
    saved = env.snapshot()
    assert saved is not None
    [fork] = env.core.fork(saved)
    assert run(env, "cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l", fork.id).splitlines()[0] == "init"
    # Both kill the shell itself.
    env.exec_on_branch(fork.id, "kill -9 -1; kill -9 1", timeout=20.0)
    assert env.core.backend.is_alive(fork.instance)


def test_a_machine_that_ends_by_itself_is_reported_and_can_be_restored(
    env: ForkableEnvironmentManager,
) -> None:
    saved = env.snapshot()
    assert saved is not None
    with pytest.raises(BackendFailed):
        env.core.run("echo b > /proc/sysrq-trigger")
    with pytest.raises(BackendFailed, match="has ended"):
        env.core.run("true")
    assert env.restore(saved)
    assert run(env, "echo back") == "back\n"


def test_the_size_of_a_snapshot_does_not_count_shared_data(env: ForkableEnvironmentManager) -> None:
    run(env, "dd if=/dev/urandom of=/var/tmp/eight bs=1M count=8 2>/dev/null && sync")
    first, second = env.snapshot(), env.snapshot()
    assert first is not None
    assert second is not None
    disk = [env.core.images[saved].sizes[DISK] for saved in (first, second)]
    assert 8 << 20 <= disk[0] < 64 << 20
    assert disk[1] < 8 << 20
    assert env.core.images[second].sizes["state"] > 0


# -- the line into a machine


def raw_line(env: ForkableEnvironmentManager) -> Line:
    line = Line()
    connect_in(machine_directory(env), PORT, line, 10.0)
    return line


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"garbage",
        FLAG,
        FLAG + b"O123",
        FLAG + b"Oabc\n",
        FLAG + b"Oabc\n\x40\0\0",
        b"\xdb",
        FLAG + b"Z" * 500,
    ],
    ids=[
        "nothing",
        "data",
        "flag",
        "half a word",
        "a caller",
        "half a frame",
        "half an escape",
        "too long a word",
    ],
)
def test_unfinished_input_of_one_caller_does_not_reach_the_next(
    env: ForkableEnvironmentManager, rest: bytes
) -> None:
    for number in range(3):
        with closing(raw_line(env)) as line:
            line.send(rest)
        assert run(env, f"echo {number}") == f"{number}\n"


def test_output_for_a_caller_that_disconnected_does_not_reach_the_next(
    env: ForkableEnvironmentManager,
) -> None:
    backend = env.core.backend
    assert isinstance(backend, MicrovmBackend)
    for number in range(3):
        client = backend.connect(env.core.branch().instance)
        client.send(encode_run("main", b"seq 20000"))
        client.next_frame(60.0)
        client.close()
        assert run(env, f"echo {number}") == f"{number}\n"


def test_a_clone_of_a_snapshot_taken_during_a_connection_can_be_reached(
    env: ForkableEnvironmentManager,
) -> None:
    with closing(raw_line(env)) as line:
        line.open(60.0, renew=False)
        saved = env.snapshot()
        assert saved is not None
        [fork] = env.fork(saved)
        assert run(env, "echo here", fork.id) == "here\n"
    assert run(env, "echo there") == "there\n"


LOAD_AND_CALL = """\
import ctypes, os, socket, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
for name in open("/var/tmp/modules/order").read().split():
    fd = os.open(f"/var/tmp/modules/{name}.ko", os.O_RDONLY)
    assert libc.syscall(313, fd, b"", 0) == 0 or ctypes.get_errno() == 17, name
relay = subprocess.Popen(["/.waypoint/init", "relay", "--vsock", "1024"])
for number in range(3):
    caller = socket.socket(socket.AF_VSOCK)
    while caller.connect_ex((1, 1024)):
        time.sleep(0.05)
    caller.sendall(b"\\xc0Ocaller%d\\n" % number)
    print(caller.recv(99).decode("latin1").strip())
    caller.close()
relay.kill()
"""


def test_the_relay_for_firecracker_serves_one_connection_after_another(
    env: ForkableEnvironmentManager, state: Path, tmp_path: Path
) -> None:
    """Over the guest kernel's own loopback. Init refuses each call from inside the session, and names the caller."""
    modules = tmp_path / "modules"
    modules.mkdir()
    order = ("vsock", "vmw_vsock_virtio_transport_common", "vsock_loopback")
    for name in order:
        shutil.copy(state / f"microvm/kernel/modules/{name}.ko", modules)
    (modules / "order").write_text("\n".join(order))
    (modules / "call.py").write_text(LOAD_AND_CALL)
    assert env.copy_in(modules, "/var/tmp/modules")
    assert run(env, "python3 /var/tmp/modules/call.py") == "".join(f"\xc0Ecaller{n}\n" for n in range(3))


# -- managers


def test_two_managers_run_at_once_and_one_can_be_cleaned_up_alone(state: Path) -> None:
    with new_manager(state) as kept:
        saved = kept.snapshot()
        assert saved is not None
        with new_manager(state) as other:
            run(other, "echo other > /var/tmp/note")
            assert other.snapshot() is not None
            tag = other.core.backend.tag
            assert machines_below(state / "microvm" / "pool" / tag)
        assert machines_below(state / "microvm" / "pool" / tag) == []
        assert not (state / "microvm" / "pool" / tag).exists()
        assert kept.exec_command("cat /var/tmp/note")[0] != 0
        assert kept.restore(saved)
        assert run(kept, "echo here") == "here\n"


def test_another_process_continues_where_one_stopped(state: Path) -> None:
    manager = new_manager(state)
    run(manager, "cd /var/tmp && export LEFT=behind")
    saved = manager.snapshot()
    assert saved is not None
    manager.core.leave()
    with open_env_manager(manager.core.id, state_dir=state) as again:
        assert run(again, "echo $PWD $LEFT") == "/var/tmp behind\n"
        run(again, "export LEFT=changed")
        assert again.restore(saved)
        assert run(again, "echo $LEFT") == "behind\n"


def test_cleanup_ends_branches_and_machines_that_were_never_recorded(state: Path) -> None:
    """The end of the fixture ``state`` checks that the last cleanup also unmounts the storage."""
    before = set(machines_below(state))
    with new_manager(state) as manager:
        saved = manager.snapshot()
        assert saved is not None
        assert len(manager.fork(saved, n=2)) == 2
        lost = manager.core.backend.spawn(manager.core.images[saved], "lost")
        assert manager.core.backend.is_alive(lost)
        assert len(set(machines_below(state)) - before) == 4
    assert not manager.core.backend.is_alive(lost)
    assert set(machines_below(state)) == before
    assert not (state / manager.core.id).exists()


def test_a_failed_load_leaves_the_old_machine_running_and_nothing_behind(
    env: ForkableEnvironmentManager, state: Path
) -> None:
    saved = env.snapshot()
    assert saved is not None
    image = machine_directory(env).parent.parent / "images" / saved
    (image / "state").write_bytes(b"not what QEMU wrote")
    before = machines_below(state)
    assert not env.restore(saved)
    assert env.fork(saved) == []
    assert machines_below(state) == before
    assert run(env, "echo here") == "here\n"


# -- what it is made of


def test_a_dockerfile_becomes_a_machine_with_its_variables_and_directory(state: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/data").write_text("injected\n")
    copy_busybox(tmp_path / "root")
    (tmp_path / "Dockerfile").write_text(
        'FROM scratch\nCOPY root /\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'
        "ENV GREETING=hello\nWORKDIR /srv\nRUN echo built > made\n"
    )
    with create_env_manager(
        "microvm_build",
        dockerfile_dir=os.fspath(tmp_path),
        inject_dir=os.fspath(tmp_path / "app"),
        state_dir=state,
        memory_mb=192,
        disk_mb=256,
    ) as manager:
        result = manager.core.run("pwd; echo $GREETING; cat made /app/data")
        assert result.output == "/srv\nhello\nbuilt\ninjected\n"


def test_invalid_options_are_refused_before_anything_is_made(state: Path, tmp_path: Path) -> None:
    for options in (
        {"driver": "vmware"},
        {"accelerator": "magic"},
        {"base": os.fspath(tmp_path / "nothing")},
        {"base": os.fspath(tmp_path), "dockerfile_dir": os.fspath(tmp_path)},
        {"dockerfile_dir": os.fspath(tmp_path)},
    ):
        with pytest.raises(WrongUse):
            create_env_manager("microvm_build", state_dir=tmp_path / "state", **options)
    assert list((tmp_path / "state").iterdir()) == []


def test_a_missing_qemu_is_reported_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("qemu", "firecracker"):
        monkeypatch.setattr(f"statefork.backends.microvm.{module}.CLEAN_ENV", {"PATH": os.fspath(tmp_path)})
    assert not QemuDriver.probe().is_available
    with pytest.raises(BackendUnavailable, match="qemu-system-x86_64 is not installed") as failure:
        create_env_manager("microvm_build", base=os.fspath(tmp_path), state_dir=tmp_path / "state")
    assert failure.value.hint == "apt-get install qemu-system-x86"
