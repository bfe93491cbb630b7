"""The runner of the suite: what is run once more, what makes a run red, and what it prints at the end."""

from pathlib import Path

import pytest

import run_suite

HELPER = """
import pathlib
import pytest

HERE = pathlib.Path(__file__)

def fail_at_first(name):
    mark = HERE.with_name(name)
    if not mark.exists():
        mark.touch()
        assert False, f"{name} had an unlucky moment"
"""
STEADY = """
def test_passes():
    pass

@pytest.mark.alone
def test_passes_alone():
    pass

@pytest.mark.skip(reason="no moon today")
def test_is_skipped():
    pass
"""
UNSTEADY = """
@pytest.mark.{mark}
def test_{name}():
    fail_at_first("{name}")
"""
BROKEN = """
@pytest.mark.kernel
def test_is_broken():
    assert False, "as before"
"""
DYING = """
def test_dies():
    import os
    os._exit(7)
"""


MARKS = "[pytest]\nmarkers =\n    kernel\n    e2e\n    alone\n"


class Run:
    """Run a suite of these files; return the exit status and the printed lines."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.unsteady_file = root / "build/unsteady.txt"
        self._root = root
        self._capsys = capsys

    def __call__(self, *texts: str, select: str = "test") -> tuple[int, list[str]]:
        (self._root / "pytest.ini").write_text(MARKS)
        for number, text in enumerate((STEADY, *texts)):
            (self._root / f"test_{number}.py").write_text(HELPER + text)
        status = run_suite.main(["-p", "no:cacheprovider", "--strict-markers", "-k", select], root=self._root)
        return status, self._capsys.readouterr().out.splitlines()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # this halves the start time
    return Run(tmp_path, capsys)


def unsteady(name: str, mark: str = "kernel") -> str:
    return UNSTEADY.format(name=name, mark=mark)


def test_a_run_without_failures_is_green_and_reports_skips(run: Run) -> None:
    status, lines = run()
    assert status == 0
    assert lines[-1] == "2 passed, 0 failed, 1 skipped"
    assert "SKIPPED 1: Skipped: no moon today" in lines
    assert any(line.endswith("test_0.py::test_passes_alone") for line in lines), (
        "it must be among the slowest"
    )
    assert not run.unsteady_file.exists()


def test_a_marked_test_that_passes_when_run_again_is_unsteady_and_the_run_green(run: Run) -> None:
    status, lines = run(unsteady("moody"), unsteady("moody_too", "e2e"))
    assert status == 0
    assert lines[-3] == "4 passed, 0 failed, 1 skipped"
    assert [line.partition("::")[2] for line in lines[-2:]] == [
        "test_moody, AssertionError: moody had an unlucky moment",
        "test_moody_too, AssertionError: moody_too had an unlucky moment",
    ]
    assert lines[-1].startswith("UNSTEADY: ")
    assert run.unsteady_file.read_text().splitlines() == lines[-2:]
    status, _ = run()
    assert (status, run.unsteady_file.exists()) == (0, False), "of the last run only"


def test_a_test_that_fails_twice_or_has_no_mark_makes_the_run_red(run: Run) -> None:
    status, lines = run(BROKEN, unsteady("pure", "filterwarnings('error')"))
    assert status == 1
    assert lines[-1] == "2 passed, 2 failed, 1 skipped"
    assert [line for line in lines if line.startswith("RED: ")] == [
        "RED: failed twice: test_1.py::test_is_broken",
        "RED: failed: test_2.py::test_pure",
    ]


def test_more_than_three_unsteady_tests_are_red(run: Run) -> None:
    status, lines = run(*(unsteady(f"moody_{number}") for number in range(4)))
    assert status == 1
    assert "RED: 4 tests are unsteady; at most 3 may be" in lines


def test_after_very_many_failures_nothing_is_run_again(run: Run) -> None:
    status, lines = run(*[BROKEN] * 21)
    assert status == 1
    assert len([line for line in lines if line.startswith("RED: failed: ")]) == 21
    assert not any("once more" in line for line in lines)


def test_a_test_that_was_collected_and_not_run_is_red(run: Run) -> None:
    """Both shards must collect the same tests; otherwise one takes a test that the other does not have."""
    status, lines = run(
        "import os\n@pytest.mark.parametrize('pid', [os.getpid()])\ndef test_of(pid):\n    pass\n"
    )
    assert status == 1
    [missing] = [line for line in lines if line.startswith("RED: did not run: test_1.py::test_of[")]
    assert missing.endswith("]")


@pytest.mark.parametrize(
    ("select", "said"),
    [("nothing", "no test was run"), ("(", "pytest ended with status 4 before its first test")],
)
def test_no_test_at_all_is_red(run: Run, select: str, said: str) -> None:
    status, lines = run(select=select)
    assert status == 1
    assert f"RED: {said}" in lines


def test_a_run_that_dies_is_red_and_says_where(run: Run) -> None:
    status, lines = run(DYING)
    assert status == 1
    [death] = [line for line in lines if "ended with status 7" in line]
    assert death.endswith("in test_1.py")
