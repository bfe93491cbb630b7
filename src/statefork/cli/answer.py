"""The result of a verb, as text for people and as JSON for programs."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Answer", "print_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    document: Mapping[str, object]
    exit_code: int = 0
    errors: str = ""


def print_answer(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer.document, indent=2))
        return
    if answer.text:
        print(answer.text, end="" if answer.text.endswith("\n") else "\n")
    if answer.errors:
        print(answer.errors, end="" if answer.errors.endswith("\n") else "\n", file=sys.stderr)
