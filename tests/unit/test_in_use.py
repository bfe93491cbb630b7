"""The kernel is asked which processes use a directory or hold a lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waypoint.kernel.in_use import lock_holders, process_name, processes_below
from waypoint.kernel.processes.bash_syntax import SyntaxCheck
from waypoint.store.lock import locked

HOLD = "import os, sys; sys.stdout.write('on'); sys.stdout.flush(); sys.stdin.read()"


@pytest.mark.parametrize("way", ["cwd", "open file", "open directory"])
def test_a_process_below_a_directory_is_found(tmp_path: Path, way: str) -> None:
    (tmp_path / "file").touch()
    opened = {"open file": f"{tmp_path}/file", "open directory": os.fspath(tmp_path)}.get(way)
    program = f"import os; fd = os.open({opened!r}, os.O_RDONLY); {HOLD}" if opened else HOLD
    cwd = tmp_path if way == "cwd" else Path("/")
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"on"
        [holder] = processes_below([os.fspath(tmp_path)])
        process.communicate()
    assert holder.pid == process.pid
    assert holder.name.startswith(sys.executable[:50])
    assert holder.what == {
        "cwd": f"has its working directory at {tmp_path}",
        "open file": f"has a file open: {tmp_path}/file",
        "open directory": f"has a directory open: {tmp_path}",
    }.get(way)
    assert processes_below([os.fspath(tmp_path)]) == []


def test_a_directory_whose_name_only_begins_the_same_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    with subprocess.Popen(["cat"], cwd=tmp_path / "ab", stdin=subprocess.PIPE) as process:
        assert processes_below([f"{tmp_path}/a"]) == []
        process.communicate()


def test_the_holder_of_a_lock_is_found(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holders(path) == []
    with locked(path, what="the test"):
        assert lock_holders(path) == [os.getpid()]
    assert lock_holders(path) == []


def test_a_process_that_has_ended_has_no_name() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert process_name(process.pid) == ""


@pytest.mark.parametrize(
    ("line", "is_fine"),
    [
        ("echo hi; for i in 1 2; do echo $i; done", True),
        ("cat <<EOF\nunclosed ( ' text\nEOF", True),
        ("echo !(a|b)", True),  # a session may have enabled these patterns
        ("", True),
        ("if true; then", False),
        ("echo 'unclosed", False),
        ("echo )", False),
        ("a &&", False),
    ],
)
def test_bash_checks_the_syntax_of_a_line(line: str, is_fine: bool) -> None:
    assert (SyntaxCheck(line).complaint() == "") is is_fine
