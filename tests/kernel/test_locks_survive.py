"""Locks on files keep others out after a restore and in a fork."""

import pytest

from support.workload import assert_workload_survives
from waypoint import Session
from workloads.locks import WORKLOADS


@pytest.mark.parametrize("workload", [workload.__name__ for workload in WORKLOADS])
def test_a_process_still_has_its_lock(session: Session, workload: str) -> None:
    assert_workload_survives(session, "locks", workload)
