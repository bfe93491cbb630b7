"""The examples of README, docs and examples: the fenced blocks of a page that a reader would run."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REPOSITORY", "Example", "examples", "pages"]

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_RUN = ("sh", "console", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One block. ``console`` has commands after ``$ ``, and what they print."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[str]:
    """README and every page of docs and examples, by its path in the repository."""
    found = [
        REPOSITORY / "README.md",
        *sorted(REPOSITORY.glob("docs/**/*.md")),
        *REPOSITORY.glob("examples/**/*.md"),
    ]
    return [str(path.relative_to(REPOSITORY)) for path in found]


def examples(page: str) -> list[Example]:
    """What a reader of the page would run, from top to bottom."""
    text = (REPOSITORY / page).read_text()
    unmarked = re.search(
        r"^    (\$|waypoint|statefork|make|python3?|examples/\S+) .*", _BLOCK.sub("", text), re.MULTILINE
    )
    assert unmarked is None, f"{page}: a fence tells that this is run: {unmarked[0]}"
    found = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        if match[1] in _RUN:
            found.append(Example(page=page, line=line, language=match[1], text=match[2]))
        else:
            assert not re.search(r"^\$ ", match[2], re.MULTILINE), f"{page}:{line}: say ```console"
    return found
