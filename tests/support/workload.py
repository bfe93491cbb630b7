"""Run a self-checking program of ``tests/workloads`` in a session, and let copies of it check themselves."""

from pathlib import Path

from support.waiting import DEADLINE_S, wait_until
from waypoint import Branch, Session
from workloads.pausing import READY

__all__ = ["assert_unharmed", "assert_workload_survives", "install_workloads", "start_workload"]

_PROGRAMS = Path(__file__).parent.parent / "workloads"


def install_workloads(session: Session) -> None:
    """Write the programs into the session; the repository need not be visible there."""
    session.exec("mkdir -p /tmp/programs/workloads")
    for program in _PROGRAMS.glob("*.py"):
        target = f"/tmp/programs/workloads/{program.name}"
        session.exec(f"cat >{target} <<'END OF PROGRAM'\n{program.read_text()}END OF PROGRAM")
    session.exec("export PYTHONPATH=/tmp/programs PYTHONDONTWRITEBYTECODE=1")


def start_workload(session: Session, module: str, workload: str) -> None:
    """Start it as a background job and wait until its state is built."""
    install_workloads(session)
    session.exec(f"python3 -m workloads.{module} {workload} &")
    wait_until(session, f"[ -e {READY} ] || ! kill -0 %1 2>/dev/null")


def assert_unharmed(branch: Branch) -> None:
    """Let the workload in this branch check itself and end."""
    ended = branch.exec("kill -USR1 %1; wait %1", timeout_s=DEADLINE_S)
    assert ended.exit_code == 0, ended.output


def assert_workload_survives(session: Session, module: str, workload: str) -> None:
    """Check that it keeps running after a checkpoint, after a restore of it, and in a fork of it."""
    start_workload(session, module, workload)
    saved = session.snapshot()
    assert_unharmed(session.main)
    session.restore(saved)
    (fork,) = session.fork(saved)
    for branch in (session.main, fork):
        assert_unharmed(branch)
