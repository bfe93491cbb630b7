"""Why CRIU failed, in one line, from its log."""

from pathlib import Path

import pytest

from waypoint.kernel.criu.log import digest_log

NOISE = "Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (NOISE + "Error (criu/files.c:10): Can't lookup mount=5\n", "Can't lookup mount=5"),
        ("(00.012345)     12: Error (criu/x.c:1): with time and pid\n", "with time and pid"),
        ("Warn  (criu/x.c:1): only a warning\n", ""),
        (NOISE, ""),
    ],
)
def test_the_reason_is_taken_from_the_errors(tmp_path: Path, log: str, expected: str) -> None:
    (tmp_path / "criu.log").write_text(log)
    (tmp_path / "criu.out").write_text("")
    assert digest_log(tmp_path / "criu.log", tmp_path / "criu.out") == expected


def test_a_repeated_error_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "criu.log").write_text("Error (a.c:1): first\nError (a.c:1): first\nError (b.c:2): second\n")
    (tmp_path / "criu.out").write_text("")
    assert digest_log(tmp_path / "criu.log", tmp_path / "criu.out") == "first; second"


def test_without_a_log_the_output_of_the_program_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "criu.out").write_text("waypoint-init: enter network: No such file or directory\n")
    assert "enter network" in digest_log(tmp_path / "criu.log", tmp_path / "criu.out")
