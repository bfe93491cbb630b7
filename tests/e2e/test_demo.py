"""``make demo`` runs to its end, keeps every promise, and leaves the host as before."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.command_line import Cli, Ended

EXAMPLES = Path(__file__).parents[2] / "examples"
BREAK_A_PROMISE = (
    "import demo, sys; demo.PROJECT['site/index.html'] = 'another version'; sys.exit(demo.main())"
)


def run_demo(cli: Cli, *arguments: str) -> Ended:
    ended = subprocess.run(
        [sys.executable, *arguments],
        env={**cli.env, "PYTHONPATH": os.fspath(EXAMPLES)},
        cwd="/",
        capture_output=True,
        timeout=120,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr.decode())


def assert_nothing_is_left(cli: Cli, ended: Ended) -> None:
    (directory,) = re.findall(r"started in (/var/tmp/waypoint-demo-\S+)", ended.text)
    assert not os.path.exists(directory)
    assert cli("list") == "No sessions found"
    assert not os.path.ismount(cli.state_dir / "pool")
    cli("pool")  # mounts the pool again, for the check of what a state directory may leave behind


def test_the_demo_keeps_its_promises_and_leaves_nothing(cli: Cli) -> None:
    ended = run_demo(cli, os.fspath(EXAMPLES / "demo.py"))
    assert (ended.exit_code, ended.err) == (0, ""), ended.text
    assert ended.lines[-1] == "All as promised."
    assert "NOT AS PROMISED" not in ended.text
    for line in (
        "ok: the server is gone, and so is the counter",
        "ok: the variable is back",
        "ok: the directory is back",
        "ok: the files are back",
        "ok: main answers on port 8000: 'second version'",
        *(f"ok: fork-{number} answers on port 8000: 'idea of fork-{number}'" for number in range(1, 5)),
        "ok: the real directory on the host never changed",
        "├─ ▶ fork-4  running",
        "   └─ ▶ main  running",
    ):
        assert f"     {line}" in ended.lines, ended.text
    for kind in ("create", "snapshot", "restore", "fork", "exec"):
        assert any(line.startswith(f"     {kind} ") for line in ended.lines), kind
    assert_nothing_is_left(cli, ended)


def test_a_broken_promise_is_reported_and_everything_is_cleaned_up(cli: Cli) -> None:
    ended = run_demo(cli, "-c", BREAK_A_PROMISE)
    assert ended.exit_code == 1
    assert "     NOT AS PROMISED: the web server answers 'first version'" in ended.lines
    assert ended.lines[-1].startswith("NOT everything was as promised")
    assert_nothing_is_left(cli, ended)


def test_without_setup_the_demo_reports_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    cli.env["WAYPOINT_STATE_DIR"] = f"{tmp_path}/fresh"
    ended = run_demo(cli, os.fspath(EXAMPLES / "demo.py"))
    cli.env["WAYPOINT_STATE_DIR"] = os.fspath(cli.state_dir)
    assert ended.exit_code == 1
    assert "is not set up" in ended.err
    assert "waypoint setup" in ended.err
    assert "Traceback" not in ended.err
