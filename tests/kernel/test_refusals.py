"""What CRIU cannot save is refused by name, and the branch keeps running unharmed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import Holdings, look_at_host
from support.workload import assert_unharmed, install_workloads, start_workload
from waypoint import Session, Waypoint
from waypoint.errors import DumpFailed
from waypoint.model import Walls


@pytest.fixture
def walled(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, request: pytest.FixtureRequest
) -> Iterator[Session]:
    """A session with the walls that the test asks for, because some things can be made only without them."""
    created = waypoint.create(workspace, walls=request.param)
    yield created
    created.cleanup(force=True)


def test_what_cannot_be_saved_is_not_available_to_programs(session: Session) -> None:
    install_workloads(session)
    refused = session.exec("python3 -m workloads.io_uring ring")
    assert "PermissionError" in refused.output
    session.snapshot()


@pytest.mark.parametrize(
    ("walled", "module", "workload", "named"),
    [
        (Walls(privileged=True), "io_uring", "ring", "io_uring"),
        (Walls(), "tracing", "traced", "traced"),
    ],
    ids=["uses io_uring", "is being traced"],
    indirect=["walled"],
)
def test_a_branch_is_unharmed_by_a_snapshot_refused_because_a_process(
    walled: Session, state_dir: Path, module: str, workload: str, named: str
) -> None:
    session = walled
    session.exec("cd /usr; x=kept; f() { echo f; }; sleep 1000 & disown")
    session.snapshot("before")
    start_workload(session, module, workload)
    state = "echo $PWD $x $(f) $$; jobs; pgrep -c sleep"
    answer = session.exec(state).output
    assert answer.startswith("/usr kept f ")
    assert "Running" in answer
    holdings = look_at_host(state_dir)

    for _ in range(2):  # the second attempt would hit leftovers of the first
        with pytest.raises(DumpFailed, match=named) as refused:
            session.snapshot("refused")
        assert "criu.log" in refused.value.hint
        assert refused.value.log_file is not None
        assert refused.value.log_file.is_file()
        assert session.exec(state).output == answer
    with pytest.raises(DumpFailed, match=named):
        session.fork(session.main, ids=["nobody"])

    assert [checkpoint.name for checkpoint in session.checkpoints()] == ["before"]
    assert [branch.name for branch in session.branches()] == ["main"]
    assert look_at_host(state_dir) - holdings == Holdings()
    assert os.listdir(session.directory / "tmp").count("programs") == 1
    assert_unharmed(session.main)
    session.snapshot("refused")
    session.exec("x=lost")
    session.restore("refused")
    assert session.exec("echo $x; pgrep -c sleep").output == "kept\n1\n"
