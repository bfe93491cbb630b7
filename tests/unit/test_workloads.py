"""The workloads of the benchmark, run by the host's own shell: which programs they end, and where they write."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.benchmark import workloads
from statefork.benchmark.workloads import Workload, make_workload
from support.waiting import wait_for
from waypoint.kernel.processes.process_tree import end_tree, read_process
from waypoint.kernel.processes.programs import DEVNULL, run_tool, spawn

APPS = Path(workloads.__file__).parent.parent / "apps"


@pytest.fixture
def logger() -> Iterator[Workload]:
    workload = make_workload("logger")
    home = Path(workload.home)
    home.mkdir()
    shutil.copy(APPS / "logger.py", home)
    yield workload
    end_tree(noted_pid(workload))
    shutil.rmtree(home)


def noted_pid(workload: Workload) -> int:
    return int((Path(workload.home) / "pid").read_text())


def is_running(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.is_alive


def start(workload: Workload) -> int:
    """Start it as many backends do, by a shell whose command line holds the workload's words; return its pid."""
    run_tool(("sh", "-c", workload.start), timeout_s=60)
    return noted_pid(workload)


def test_a_restarted_program_ends_its_old_process_and_no_other(logger: Workload, tmp_path: Path) -> None:
    (tmp_path / "bystander.py").write_text("import time\ntime.sleep(1000)\n")
    bystander = spawn((sys.executable, str(tmp_path / "bystander.py")), stdout=DEVNULL, stderr=DEVNULL)
    try:
        first = start(logger)
        assert is_running(first)
        second = start(logger)
        wait_for(lambda: not is_running(first))
        assert is_running(second)
        assert bystander.poll() is None
        # the pid belongs to another process by now
        (Path(logger.home) / "pid").write_text(f"{bystander.pid}\n")
        end_tree(second)
        start(logger)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_runs_never_share_a_directory() -> None:
    assert make_workload("kv").home != make_workload("kv").home
    assert os.path.dirname(make_workload("kv").home) == "/var/tmp"
