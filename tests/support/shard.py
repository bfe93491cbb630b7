"""A pytest plugin for one of several runs that share the suite and report each result to ``tests/run_suite.py``.

Each run takes one file of tests after another, so that none is idle while work is left. A file is never split, because
its tests share fixtures.

    pytest -p support.shard --shard-files COUNTER --shard-report DESCRIPTOR
"""

import fcntl
import json
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

__all__ = ["PATIENT_MARKS"]

PATIENT_MARKS = ("kernel", "e2e")
"""Marks of tests that depend on the real kernel and its timing: such a test is run once more when it fails."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shard", "several runs share the tests")
    group.addoption("--shard-files", type=Path, help="the number of the next file, taken by all runs in turn")
    group.addoption("--shard-alone", choices=("no", "only"), help="what becomes of tests with the mark alone")
    group.addoption("--shard-report", type=int, help="descriptor for a line of JSON about each test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Shard(config), "shard")


class _Shard:
    def __init__(self, config: pytest.Config) -> None:
        self._counter: Path | None = config.getoption("--shard-files")
        self._alone: str | None = config.getoption("--shard-alone")
        self._report: int = config.getoption("--shard-report")
        os.set_inheritable(self._report, False)
        self._may_run_again: dict[str, bool] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._alone is not None:
            alone = [item for item in items if item.get_closest_marker("alone") is not None]
            others = [item for item in items if item.get_closest_marker("alone") is None]
            items[:], left_out = (alone, others) if self._alone == "only" else (others, alone)
            config.hook.pytest_deselected(items=left_out)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marked = any(item.get_closest_marker(mark) is not None for mark in PATIENT_MARKS)
            self._may_run_again[item.nodeid] = marked
        self._report_line(collected=[item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = report.longreprtext if report.failed else ""
        if report.skipped:
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self._report_line(
            test=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            duration_s=report.duration,
            text=text,
            may_run_again=self._may_run_again[report.nodeid],
        )

    def _report_line(self, **facts: object) -> None:
        line = memoryview(json.dumps(facts).encode() + b"\n")
        while line:
            line = line[os.write(self._report, line) :]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Like pytest's own loop, but the next test is only chosen when the one before it begins."""
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest says what is wrong
        items = self._items(session.items)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _items(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        if self._counter is None:
            yield from items
            return
        files = [list(group) for _, group in groupby(items, lambda item: item.path)]
        while (number := _take_number(self._counter)) < len(files):
            yield from files[number]


def _take_number(counter: Path) -> int:
    """Return the next number, which no other run gets."""
    with counter.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = int(file.read() or 0)
        file.seek(0)
        file.write(str(number + 1))
    return number
