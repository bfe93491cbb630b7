"""What CRIU cannot save is refused by name, and the branch goes on as if nobody had asked."""

import os
from pathlib import Path

import pytest

from support.leaks import Holdings, look_at_host
from support.workload import assert_unharmed, start_workload
from waypoint import Session
from waypoint.errors import DumpFailed


@pytest.mark.parametrize(
    ("module", "workload", "named"),
    [("io_uring", "ring", "io_uring"), ("tracing", "traced", "traced")],
    ids=["uses io_uring", "is being traced"],
)
def test_a_branch_is_not_harmed_by_a_snapshot_refused_because_a_process(
    session: Session, state_dir: Path, module: str, workload: str, named: str
) -> None:
    session.exec("cd /usr; x=kept; f() { echo f; }; sleep 1000 & disown")
    session.snapshot("before")
    start_workload(session, module, workload)
    state = "echo $PWD $x $(f) $$; jobs; pgrep -c sleep"
    answer = session.exec(state).output
    assert answer.startswith("/usr kept f ")
    assert "Running" in answer
    holdings = look_at_host(state_dir)

    for _ in range(2):  # the second meets whatever the first left
        with pytest.raises(DumpFailed, match=named) as refused:
            session.snapshot("refused")
        assert "criu.log" in refused.value.hint
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
