"""A killed caller leaves a microVM that keeps running, and nothing that cleanup does not find."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.environment import run
from contract.machines import copy_busybox, machines_below, new_manager, state_directory
from statefork import open_env_manager
from waypoint.kernel.processes.programs import run_tool

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    with state_directory() as path:
        yield path


KILLED_WHILE_SAVING = """\
import os, signal, sys
from statefork import open_env_manager
from statefork.backends.microvm import qemu
qemu.clone_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
open_env_manager(sys.argv[1], state_dir=sys.argv[2]).core.snapshot()
"""


def test_a_machine_whose_snapshot_was_killed_runs_again_at_the_next_command(state: Path) -> None:
    manager = new_manager(state)
    run(manager, "x=kept")
    manager.core.leave()
    words = (sys.executable, "-c", KILLED_WHILE_SAVING, manager.core.id, os.fspath(state))
    assert run_tool(words, timeout_s=120, accept=(-signal.SIGKILL,)).status == -signal.SIGKILL
    with open_env_manager(manager.core.id, state_dir=state) as again:
        assert again.exec_command("echo $x", timeout=30.0)[:2] == (0, "kept\n")
        assert again.snapshot() is not None


KILLED_WHILE_MAKING = """\
import os, signal, sys
from statefork import create_env_manager
from statefork.backends.microvm import template
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "build":
    template.make_disk = kill
else:
    template.Agent.open_shell = kill
create_env_manager(
    "microvm_build", dockerfile_dir=sys.argv[1], state_dir=sys.argv[2], memory_mb=160, disk_mb=256
)
"""


@pytest.mark.alone  # it looks at everything buildah has on this host
@pytest.mark.parametrize("moment", ["build", "boot"])
def test_cleanup_removes_what_a_killed_first_start_left(state: Path, tmp_path: Path, moment: str) -> None:
    copy_busybox(tmp_path / "root")
    (tmp_path / "Dockerfile").write_text(
        'FROM scratch\nCOPY root /\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'
    )
    before, machines, known = buildah_holdings(), machines_below(state), set(os.listdir(state))
    words = (sys.executable, "-c", KILLED_WHILE_MAKING, os.fspath(tmp_path), os.fspath(state), moment)
    assert run_tool(words, timeout_s=180, accept=(-signal.SIGKILL,)).status == -signal.SIGKILL
    made = buildah_holdings() - before
    assert bool(made) == (moment == "build")
    assert (machines_below(state) != machines) == (moment == "boot")
    [left] = set(os.listdir(state)) - known - {"microvm"}
    open_env_manager(left, state_dir=state).cleanup()
    assert not made & buildah_holdings()
    assert machines_below(state) == machines


def buildah_holdings() -> set[str]:
    """The containers and images that buildah has on this host."""
    kinds = ("containers", "images")
    return {name for kind in kinds for name in run_tool(["buildah", kind, "-q"], timeout_s=60).stdout.split()}
