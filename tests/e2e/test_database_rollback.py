"""The demonstration that the database alone is not the whole state."""

import os
import subprocess
import sys
from pathlib import Path

import statefork

EXAMPLE = Path(__file__).parents[2] / "examples/database_rollback.py"


def test_only_restoring_the_whole_environment_gives_the_right_total(
    state_dir: Path, workspace: Path, tmp_path: Path, leaves_nothing_behind: None
) -> None:
    env = {
        **os.environ,
        "WAYPOINT_STATE_DIR": str(state_dir),
        "STATEFORK_STATE_DIR": str(tmp_path / "environments"),
        "PYTHONPATH": str(Path(statefork.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=120, env=env, cwd=workspace
    )
    assert done.returncode == 0, done.stderr
    totals = [line.split()[-1] for line in done.stdout.splitlines()]
    assert totals[0] == totals[3] == "$39.98"
    assert "$39.98" not in totals[1:3]
