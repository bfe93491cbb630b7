"""Databases lose no committed row and have no wrong one, in the branch, after many restores, and in many forks."""

import json

import pytest

from support.waiting import wait_until
from support.workload import install_workloads
from waypoint import Branch, Session

ROUNDS = 50


def committed(branch: Branch | Session) -> dict[str, int]:
    """How many rows each writer has committed; all of them are there, and no others."""
    checked = branch.exec("python3 -m workloads.sqlite_writers check", timeout_s=60)
    assert checked.exit_code == 0, checked.output
    counts: dict[str, int] = json.loads(checked.output)
    return counts


def is_after(later: dict[str, int], earlier: dict[str, int]) -> bool:
    return all(later[name] >= count for name, count in earlier.items())


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_sqlite_loses_nothing(session: Session, mode: str) -> None:
    install_workloads(session)
    session.exec(f"python3 -m workloads.sqlite_writers {mode} &")
    wait_until(session, "pgrep -fc 'workloads[.]sqlite_writers' | grep -q 2")
    for _ in range(ROUNDS):
        known = committed(session)
        saved = session.snapshot()
        assert is_after(committed(session), known)
        (fork,) = session.fork(saved)
        assert is_after(committed(fork), known)
        fork.destroy()
        session.restore(saved)
        assert is_after(committed(session), known)
