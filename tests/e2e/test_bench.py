"""The benchmark runs and measures every row; `make bench` measures how fast."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_short_benchmark_measures_every_row_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(Path("/var/tmp").glob("waypoint-bench-*"))
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", "--quick", "--json", str(tmp_path / "rows.json")],
        cwd=ROOT,
        env={**os.environ, "CI": "true"},
        capture_output=True,
        timeout=280,
        check=False,
    )
    said = finished.stderr.decode()
    assert finished.returncode == 0, (
        f"{said.splitlines()[-1]}\n{said}"
    )  # the error first, before the progress
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) >= 11
    assert all(row["ours_ms"] > 0 for row in rows)
    assert "| snapshot, pause |" in finished.stdout.decode()
    assert set(Path("/var/tmp").glob("waypoint-bench-*")) == before
