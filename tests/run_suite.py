"""Run the whole suite: two shards in parallel, then the tests that must run alone, then each failed test once more.

    python tests/run_suite.py [ARGUMENTS OF PYTEST]

A test marked ``kernel`` or ``e2e`` that fails and then passes alone is *unsteady*: the run is green and names it,
also in build/unsteady.txt. The run is red if a test fails twice, if a test without these marks fails, or if more
than three are unsteady. See docs/testing.md.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["main"]

SHARDS = 2
UNSTEADY_MAX = 3
RUN_AGAIN_MAX = 20  # if more tests fail, the cause is not bad luck
SLOWEST_SHOWN = 10
TESTS = Path(__file__).resolve().parent
# A pool cannot be unmounted while another mount namespace shows it, as those of the other shard's containers would.
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "--")
# Exit statuses of pytest that its tests explain: all passed, some failed, none was selected.
EXIT_PASSED, EXIT_FAILED, EXIT_NONE = 0, 1, 5


@dataclass(slots=True)
class Outcome:
    """How one test ended, with the setup and teardown of its fixtures."""

    may_run_again: bool = False
    duration_s: float = 0.0
    failure: str = ""
    skip: str = ""

    def add(self, report: dict[str, Any]) -> None:
        self.may_run_again = report["may_run_again"]
        self.duration_s += report["duration_s"]
        if report["outcome"] == "failed":
            self.failure += f"{report['text']}\n"
        elif report["outcome"] == "skipped":
            self.skip = report["text"]

    @property
    def word(self) -> str:
        return "failed" if self.failure else "skipped" if self.skip else "passed"


@dataclass(slots=True)
class Results:
    """The results of one or more pytest processes."""

    outcomes: defaultdict[str, Outcome] = field(default_factory=lambda: defaultdict(Outcome))
    collected: set[str] = field(default_factory=set)
    accidents: list[str] = field(default_factory=list)
    """Failures of a process itself."""

    def add(self, other: "Results") -> None:
        self.outcomes.update(other.outcomes)
        self.collected |= other.collected
        self.accidents += other.accidents

    def failed(self) -> dict[str, Outcome]:
        return {test: outcome for test, outcome in self.outcomes.items() if outcome.failure}

    def of_file(self, file: str) -> list[Outcome]:
        return [outcome for test, outcome in self.outcomes.items() if _file_of(test) == file]


class _Pytest:
    """One run of pytest: its reports come through a pipe; its output is kept, in case no test explains its end."""

    def __init__(self, root: Path, arguments: Sequence[str]) -> None:
        self.file = ""
        self.reports, theirs = os.pipe()
        self._rest = b""
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - until close()
        self._process = subprocess.Popen(
            [
                *(OWN_MOUNTS if os.geteuid() == 0 else ()),
                *(sys.executable, "-m", "pytest", "-p", "support.shard", f"--shard-report={theirs}"),
                *arguments,
            ],
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.fspath(TESTS)},
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            start_new_session=True,  # only we send it an interrupt, once
        )
        os.close(theirs)

    def read(self) -> Iterator[dict[str, Any]] | None:
        """Return the reports that have arrived; None when there will be no more."""
        data = os.read(self.reports, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return map(json.loads, lines) if data else None

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> str:
        """Wait for it to end; return what went wrong with the process, if anything."""
        os.close(self.reports)
        status = self._process.wait()
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace")
        self._printed.close()
        if status in (EXIT_PASSED, EXIT_FAILED, EXIT_NONE):
            return ""
        print(printed, flush=True)
        where = f"in {self.file}" if self.file else "before its first test"
        return f"pytest ended with status {status} {where}"


class Suite:
    """A run of the suite; progress is printed as it goes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._began = time.monotonic()

    def stage(self, title: str, commands: Sequence[Sequence[str]]) -> Results:
        """Run one pytest for each of the commands, in parallel."""
        print(f"== {title}", flush=True)
        results = Results()
        running = [_Pytest(self._root, arguments) for arguments in commands]
        with selectors.DefaultSelector() as selector:
            for pytest in running:
                selector.register(pytest.reports, selectors.EVENT_READ, pytest)
            try:
                while selector.get_map():
                    for key, _ in selector.select():
                        if not self._record_reports(key.data, results):
                            selector.unregister(key.fileobj)
            except KeyboardInterrupt:
                for pytest in running:
                    pytest.interrupt()
                raise
            finally:
                results.accidents += filter(None, [pytest.close() for pytest in running])
        return results

    def _record_reports(self, pytest: _Pytest, results: Results) -> bool:
        """Read and record the reports that have arrived; return whether more may come."""
        reports = pytest.read()
        for report in reports or ():
            if "collected" in report:
                results.collected.update(report["collected"])
                continue
            if (file := _file_of(report["test"])) != pytest.file:
                self._print_file(pytest, results)
                pytest.file = file
            results.outcomes[report["test"]].add(report)
            if report["outcome"] == "failed":
                print(f"FAILED in {report['when']}: {report['test']}\n{report['text']}", flush=True)
        if reports is None:
            self._print_file(pytest, results)
        return reports is not None

    def _print_file(self, pytest: _Pytest, results: Results) -> None:
        outcomes = results.of_file(pytest.file)
        if outcomes:
            counted = Counter(outcome.word for outcome in outcomes)
            words = ", ".join(f"{count} {word}" for word, count in sorted(counted.items()))
            took_s = sum(outcome.duration_s for outcome in outcomes)
            print(f"{self.seconds():7.1f} s  {pytest.file}: {words} in {took_s:.1f} s", flush=True)

    def seconds(self) -> float:
        return time.monotonic() - self._began


def main(arguments: Sequence[str], *, root: Path = TESTS.parent) -> int:
    """Run all tests of the project at ``root`` and print the results; return the exit status."""
    unsteady_file = root / "build/unsteady.txt"
    unsteady_file.unlink(missing_ok=True)
    suite = Suite(root)
    with tempfile.NamedTemporaryFile() as counter:
        shard = (f"--shard-files={counter.name}", "--shard-alone=no", *arguments)
        results = suite.stage("two shards side by side", [shard] * SHARDS)
    if results.outcomes or not results.accidents:  # otherwise the arguments are wrong
        results.add(suite.stage("alone", [("--shard-alone=only", *arguments)]))

    failed = [test for test, outcome in results.failed().items() if outcome.may_run_again]
    again = Results()
    if 0 < len(failed) <= RUN_AGAIN_MAX:
        again = suite.stage("what has failed, once more", [failed])
    red, unsteady = judge(results, again)
    _print_end(results, red)
    print(f"== {suite.seconds():.0f} s")
    counts = Counter(outcome.word for test, outcome in results.outcomes.items() if test not in unsteady)
    print(
        f"{counts['passed'] + len(unsteady)} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    )
    if unsteady:
        lines = [f"UNSTEADY: {test}, {_reason(results.outcomes[test].failure)}" for test in unsteady]
        unsteady_file.parent.mkdir(parents=True, exist_ok=True)
        unsteady_file.write_text("\n".join(lines) + "\n")
        print("\n".join(lines))
    return 1 if red else 0


def judge(first: Results, again: Results) -> tuple[list[str], list[str]]:
    """Return the reasons why the run is red, and the unsteady tests."""
    red = list(dict.fromkeys([*first.accidents, *again.accidents]))
    red += [f"did not run: {test}" for test in sorted(first.collected - set(first.outcomes))]
    if not first.outcomes:
        red.append("no test was run")
    unsteady = []
    for test in sorted(first.failed()):
        second = again.outcomes.get(test)
        if second is not None and not second.failure:
            unsteady.append(test)
        else:
            red.append(f"failed: {test}" if second is None else f"failed twice: {test}")
    if len(unsteady) > UNSTEADY_MAX:
        red.append(f"{len(unsteady)} tests are unsteady; at most {UNSTEADY_MAX} may be")
    return red, unsteady


def _print_end(results: Results, red: list[str]) -> None:
    skips = Counter(outcome.skip for outcome in results.outcomes.values() if outcome.word == "skipped")
    for reason, count in skips.most_common():
        print(f"SKIPPED {count}: {reason}")
    print(f"== the {SLOWEST_SHOWN} slowest")
    slowest = sorted(results.outcomes.items(), key=lambda entry: entry[1].duration_s, reverse=True)
    for test, outcome in slowest[:SLOWEST_SHOWN]:
        print(f"{outcome.duration_s:7.1f} s  {test}")
    for line in red:
        print(f"RED: {line}")


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _reason(failure: str) -> str:
    """Return the line of a failure that says what went wrong."""
    errors = [line.removeprefix("E").strip() for line in failure.splitlines() if line.startswith("E ")]
    return errors[0] if errors else failure.strip().splitlines()[-1]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
