"""The answer of a verb, in a form each for people, programs and scripts; and how it is printed."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waypoint.model import OperationRecord

__all__ = ["Answer", "print_answer", "print_notes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a verb: ``text`` for people, ``document`` for ``--json``, ``quiet`` for ``--quiet``.

    ``notes`` are also for people, but not part of the result.
    """

    text: str
    document: Mapping[str, object]
    quiet: str = ""
    exit_code: int = 0
    operations: Sequence[OperationRecord] = ()
    notes: Sequence[str] = ()


def print_answer(answer: Answer, *, as_json: bool, quiet: bool, timings: bool) -> None:
    """Print to standard output; notes and timings of an answer for people go to standard error."""
    if as_json:
        document = dict(answer.document)
        if timings:
            document["timings"] = [_timing_document(operation) for operation in answer.operations]
        print(json.dumps(document, indent=2))
        return
    if not quiet:
        print_notes(answer.notes)
    text = answer.quiet if quiet else answer.text
    if text:
        print(text)
    if timings:
        for operation in answer.operations:
            print(_timing_text(operation), file=sys.stderr)


def print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"waypoint: {note}", file=sys.stderr)


def _timing_document(operation: OperationRecord) -> dict[str, object]:
    return {
        "operation": operation.kind,
        "branch": operation.branch,
        "total_ms": operation.total_ms,
        "phases_ms": dict(operation.phases_ms),
    }


def _timing_text(operation: OperationRecord) -> str:
    head = f"{operation.kind} {operation.branch}: {operation.total_ms or 0:.1f} ms"
    phases = "  ".join(f"{name} {spent:.1f}" for name, spent in operation.phases_ms.items())
    return f"{head}  ({phases})"
