"""Measure the engine and print a table: ``make bench``.

Each figure is a median; what is compared is measured side by side, in turns, in this one run. Options:
``--rounds N`` (default 20), ``--quick`` (few rounds, small files: a check that all of it works),
``--json FILE``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.bare_pty import run_on_bare_pty
from benchmarks.plain_criu import plain_dump, plain_restore
from benchmarks.state_directory import state_directory
from waypoint import Session, Waypoint

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Row:
    """One line of the table: what, ours, the yardstick, their ratio (or our value) and the target for it."""

    what: str
    ours_ms: float
    yardstick: str
    yardstick_ms: float | None
    target: float

    @property
    def reached(self) -> float:
        return self.ours_ms if self.yardstick_ms is None else self.ours_ms / self.yardstick_ms

    @property
    def is_met(self) -> bool:
        return self.reached <= self.target


@dataclass(frozen=True)
class Scale:
    rounds: int
    file_megabytes: tuple[int, ...]
    burst_megabytes: int
    bursts: int
    history: int
    output_megabytes: int
    outputs: int


FULL = Scale(
    rounds=20,
    file_megabytes=(10, 1024, 4096),
    burst_megabytes=1024,
    bursts=20,
    history=1000,
    output_megabytes=100,
    outputs=5,
)
QUICK = Scale(
    rounds=3,
    file_megabytes=(10, 64),
    burst_megabytes=64,
    bursts=2,
    history=40,
    output_megabytes=2,
    outputs=1,
)


def main() -> int:
    options = _parse()
    scale = QUICK if options.quick else FULL
    if options.rounds:
        scale = Scale(**{**asdict(scale), "rounds": options.rounds, "bursts": options.rounds})
    rows: list[Row] = []
    measures = (
        bench_snapshot_and_restore,
        bench_exec,
        bench_output,
        bench_file_sizes,
        bench_history,
        bench_burst,
    )
    with state_directory("bench") as state_dir, Waypoint(state_dir) as waypoint:
        for measure in measures:
            print(f"measuring: {(measure.__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
            rows += measure(waypoint, scale)
    print(render(rows))
    if options.json:
        Path(options.json).write_text(
            json.dumps([asdict(row) | {"reached": row.reached} for row in rows], indent=2)
        )
    return 0


def bench_snapshot_and_restore(waypoint: Waypoint, scale: Scale) -> list[Row]:
    """Snapshot and restore of a shell-only branch, against plain CRIU."""
    with _session(waypoint) as session:
        plain, calls, pauses, restores, plain_restores = [], [], [], [], []
        checkpoint = session.snapshot("point")
        for _ in range(scale.rounds):
            plain.append(plain_dump(session))
            calls.append(_timed(session.snapshot))
            pauses.append(_last_pause(session))
            plain_restores.append(plain_restore(session, checkpoint))
            restores.append(_timed(lambda: _restore_and_ask(session, "point")))
        return [
            Row("snapshot, pause", median(pauses), "plain criu dump", median(d.pause_ms for d in plain), 1.3),
            Row("snapshot, call", median(calls), "plain criu dump", median(d.call_ms for d in plain), 1.6),
            Row(
                "restore, call to first answer",
                median(restores),
                "plain criu restore",
                median(plain_restores),
                1.6,
            ),
        ]


def bench_exec(waypoint: Waypoint, scale: Scale) -> list[Row]:
    """A command, through the Python API and through the command line."""
    with _session(waypoint) as session:
        api = [_timed(lambda: session.exec("true")) for _ in range(10 * scale.rounds)]
        state_dir = str(waypoint.context.layout.state_dir)
        program = str(Path(sys.executable).with_name("waypoint"))
        command = [program, "--state-dir", state_dir, "exec", session.id, "--", "true"]
        cli, bare = [], []
        for _ in range(scale.rounds):
            bare.append(_timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
            cli.append(_timed(lambda: subprocess.run(command, check=True)))
        return [
            Row("exec true, Python API (ms)", median(api), "-", None, 3.0),
            Row("exec true, command line", median(cli), "bare Python start", median(bare), 3.0),
        ]


def bench_output(waypoint: Waypoint, scale: Scale) -> list[Row]:
    """Output of a command: its first byte, and much of it, against a PTY of our own."""
    first, ours, bare = [], [], []
    with _session(waypoint) as session, tempfile.NamedTemporaryFile(dir="/var/tmp") as text:
        text.write((b"x" * 99 + b"\n") * (scale.output_megabytes * MEGABYTE // 100))
        text.flush()
        session.upload(text.name, "/tmp/text")
        for _ in range(10 * scale.rounds):
            with session.stream("echo; true") as stream:
                first.append(_timed(lambda: next(iter(stream))))
                list(stream)
        for _ in range(scale.outputs):
            ours.append(_timed(lambda: session.exec("cat /tmp/text", on_output=lambda _data: None)))
            bare.append(_timed(lambda: run_on_bare_pty("cat", text.name)))
    return [
        Row("first byte of output, Python API (ms)", median(first), "-", None, float("inf")),
        # at least 0.7 of its throughput
        Row(f"{scale.output_megabytes} MB of output", median(ours), "over a bare PTY", median(bare), 1 / 0.7),
    ]


def bench_file_sizes(waypoint: Waypoint, scale: Scale) -> list[Row]:
    """Snapshot of branches that have written files of different sizes."""
    with _sessions(waypoint, len(scale.file_megabytes)) as sessions:
        for session, size in zip(sessions, scale.file_megabytes, strict=True):
            _write_file(session, size)
        calls: list[list[float]] = [[] for _ in sessions]
        for _ in range(scale.rounds):
            for session, taken in zip(sessions, calls, strict=True):
                taken.append(_timed(session.snapshot))
        smallest = median(calls[0])
        return [
            Row(
                f"snapshot, {size} MB of files", median(taken), f"{scale.file_megabytes[0]} MB", smallest, 1.5
            )
            for size, taken in zip(scale.file_megabytes[1:], calls[1:], strict=True)
        ]


def bench_history(waypoint: Waypoint, scale: Scale) -> list[Row]:
    """Snapshots of one branch in a row."""
    with _session(waypoint) as session:
        calls = [_timed(session.snapshot) for _ in range(scale.history + scale.rounds)]
        first = median(calls[: scale.rounds])
        return [
            Row(
                f"snapshot after {count} checkpoints",
                median(calls[count : count + scale.rounds]),
                "the first",
                first,
                1.5,
            )
            for count in (scale.history // 10, scale.history)
        ]


def bench_burst(waypoint: Waypoint, scale: Scale) -> list[Row]:
    """Pause of a snapshot right after a command wrote a large file."""
    idle, burst, calls = [], [], []
    for _ in range(scale.bursts):
        with _session(waypoint) as session:  # a new one each time: its files are freed with it
            session.snapshot()
            idle.append(_last_pause(session))
            session.exec(f"head -c {scale.burst_megabytes}M /dev/urandom >/root/burst")
            calls.append(_timed(session.snapshot))
            burst.append(_last_pause(session))
    size = f"{scale.burst_megabytes} MB written"
    return [
        Row(f"snapshot right after {size}, pause", median(burst), "idle pause", median(idle), 3.0),
        Row("  the call, which writes them out (ms)", median(calls), "-", None, float("inf")),
    ]


def render(rows: list[Row]) -> str:
    """The table, as Markdown."""
    lines = [
        "| measured | ours (ms) | yardstick | (ms) | reached | target | |",
        "|---|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        yardstick_ms = "" if row.yardstick_ms is None else f"{row.yardstick_ms:.1f}"
        unit = " ms" if row.yardstick_ms is None else "x"
        target = "-" if row.target == float("inf") else f"<= {row.target:.3g}{unit}"
        verdict = "" if target == "-" else "met" if row.is_met else "MISSED"
        reached = f"{row.reached:.2f}{unit}"
        lines.append(
            f"| {row.what} | {row.ours_ms:.1f} | {row.yardstick} | {yardstick_ms} | {reached} | {target} | {verdict} |"
        )
    return "\n".join(lines)


def _restore_and_ask(session: Session, name: str) -> None:
    session.restore(name)
    answer = session.exec("echo back").output
    if answer != "back\n":
        raise RuntimeError(f"the restored branch answered {answer!r}")


def _write_file(session: Session, megabytes: int) -> None:
    session.exec(f"head -c {megabytes}M /dev/urandom >/root/file")
    session.context.platform.layers.flush(session.context.layout.layer(session.main.record.incarnation))


def _last_pause(session: Session) -> float:
    return session.operations()[-1].phases_ms["pause"]


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


@contextmanager
def _session(waypoint: Waypoint) -> Iterator[Session]:
    with _sessions(waypoint, 1) as sessions:
        yield sessions[0]


@contextmanager
def _sessions(waypoint: Waypoint, count: int) -> Iterator[list[Session]]:
    made: list[Session] = []
    try:
        for _ in range(count):
            made.append(waypoint.create("/root"))
        yield made
    finally:
        for session in made:
            session.cleanup(force=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="rounds of each measurement")
    parser.add_argument("--quick", action="store_true", help="few rounds and small files")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
