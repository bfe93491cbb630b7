"""Measurements as a table, as CSV and as JSON; :mod:`statefork.benchmark.picture` draws them."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from statefork.benchmark.measure import Measurement
from statefork.stats import Statistics, percentile
from statefork.survival_probes import PROBES

__all__ = ["as_csv", "as_documents", "as_json", "as_records", "as_table"]

_OPERATIONS = ("build", "snapshot", "restore", "answer", "fork", "exec", "cleanup")
_SHOWN = {
    "build": "build s",
    "snapshot": "snapshot s",
    "restore": "restore s",
    "answer": "restore to verified answer s",
    "fork": "fork s",
    "exec": "exec s",
}


def as_table(measurements: Sequence[Measurement]) -> str:
    """One line for each backend, as Markdown: medians in seconds (and the 95th percentile), sizes, what survived."""
    kinds = [probe.capability for probe in PROBES]
    head = ["backend", *_SHOWN.values(), "snapshot adds MB", "state right", *kinds]
    lines = [_row(head), _row(["---"] * len(head))]
    for found in measurements:
        times = [_time(found.times(name)) for name in _SHOWN]
        sizes = [sample.size_bytes for sample in found.samples if sample.operation == "snapshot"]
        size = f"{percentile(sizes, 50) / 1e6:.2f}" if sizes else "-"
        kept = ["-" if kind not in found.survived else _mark(found.survived[kind]) for kind in kinds]
        right = "-" if found.is_right is None else _mark(found.is_right)
        lines.append(_row([found.backend, *times, size, right, *kept]))
    lines += [f"\n{found.backend}: {found.failure}" for found in measurements if found.failure]
    return "\n".join(lines)


def as_csv(measurements: Sequence[Measurement]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["backend", "workload", "repeat", "operation", "seconds", "size_bytes"])
    for found in measurements:
        for sample in found.samples:
            writer.writerow(
                [
                    sample.backend,
                    sample.workload,
                    sample.repeat,
                    sample.operation,
                    f"{sample.seconds:.6f}",
                    sample.size_bytes,
                ]
            )
    return out.getvalue()


def as_json(measurements: Sequence[Measurement]) -> str:
    return json.dumps(as_documents(measurements), indent=2)


def as_documents(measurements: Sequence[Measurement]) -> dict[str, object]:
    documents = [
        {
            "backend": found.backend,
            "workload": found.workload,
            "is_right": found.is_right,
            "failure": found.failure,
            "survived": found.survived,
            "snapshot_bytes": [
                sample.size_bytes for sample in found.samples if sample.operation == "snapshot"
            ],
            "statistics": {
                name: asdict(Statistics.of(found.times(name), "seconds"))
                for name in _OPERATIONS
                if found.times(name)
            },
            "samples": [asdict(sample) for sample in found.samples],
        }
        for found in measurements
    ]
    return {"measurements": documents}


def as_records(measurements: Sequence[Measurement]) -> str:
    """What the statistics of each environment say: every operation, and what each snapshot takes."""
    return "\n\n".join(f"{found.backend}\n{found.records}" for found in measurements) + "\n"


def _time(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "-"
    return f"{percentile(values, 50):.3f} ({percentile(values, 95):.3f})"


def _mark(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
