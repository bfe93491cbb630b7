"""A server of a unix socket knows who its clients are also after a restore and in a fork."""

import pytest

from support.workload import assert_workload_survives
from waypoint import Session
from workloads.unix_peers import WORKLOADS


@pytest.mark.parametrize("workload", [workload.__name__ for workload in WORKLOADS])
def test_a_server_still_knows_its_clients(session: Session, workload: str) -> None:
    assert_workload_survives(session, "unix_peers", workload)
