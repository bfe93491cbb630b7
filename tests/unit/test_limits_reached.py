"""Reached limits are reported from the kernel's counters before and after a command."""

from pathlib import Path

import pytest

from waypoint.errors import CommandTimedOut
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.limits_reached import LimitWatch
from waypoint.store.limit_record import CountedLimit, read_limits, remove_record, size_text, write_limits
from waypoint.store.live import LiveCatalogue


@pytest.fixture
def address(tmp_path: Path) -> BranchAddress:
    return BranchAddress(str(tmp_path), LiveCatalogue(tmp_path / "catalogue.db"), "session", "main")


def test_only_limits_reached_meanwhile_are_reported(address: BranchAddress, tmp_path: Path) -> None:
    memory, pids = tmp_path / "memory.oom_control", tmp_path / "pids.events"
    memory.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    pids.write_text("max 0\n")
    write_limits(
        str(tmp_path),
        "abc",
        [
            CountedLimit("memory", 256 << 20, str(memory), "oom_kill"),
            CountedLimit("pids", 64, str(pids), "max"),
        ],
    )
    watch = LimitWatch(address, "abc")
    assert watch.reached() == ()
    memory.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert list(map(str, watch.reached())) == ["memory limit of 256M reached: 1 process was killed"]
    memory.write_text("oom_kill 7\n")
    pids.write_text("max 12\n")
    assert [(limit.name, limit.times) for limit in watch.reached()] == [("memory", 3), ("pids", 12)]
    assert str(watch.reached()[1]) == "pids limit of 64 reached: 12 new processes were refused"
    pids.unlink()  # the branch has ended
    assert [limit.name for limit in watch.reached()] == ["memory"]


def test_a_branch_without_limits_has_no_record(address: BranchAddress, tmp_path: Path) -> None:
    assert LimitWatch(address, "abc").reached() == ()
    assert read_limits(str(tmp_path), "abc") == []
    remove_record(str(tmp_path), "abc")


@pytest.mark.parametrize(
    ("size", "text"),
    [(256 << 20, "256M"), (3 << 29, "1.5G"), (16 << 20, "16M"), (1 << 40, "1T"), (2048, "2K"), (7, "7")],
)
def test_sizes_are_printed_as_users_write_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_an_error_names_the_limits_that_explain_it(address: BranchAddress, tmp_path: Path) -> None:
    error = CommandTimedOut(2.0)
    assert error.because_of(()) is error
    assert str(error) == "command timed out after 2 s"
    (tmp_path / "pids.events").write_text("max 0\n")
    write_limits(str(tmp_path), "abc", [CountedLimit("pids", 64, str(tmp_path / "pids.events"), "max")])
    watch = LimitWatch(address, "abc")
    (tmp_path / "pids.events").write_text("max 1\n")
    error.because_of(watch.reached())
    assert str(error) == "command timed out after 2 s; pids limit of 64 reached: 1 new process was refused"
    assert [limit.name for limit in error.limits_reached] == ["pids"]
