"""The checkpoints and branches of a session, drawn as a tree of text."""

from collections import defaultdict
from dataclasses import dataclass

from waypoint.cli.units import age, megabytes
from waypoint.model import CheckpointKind
from waypoint.session.status import SessionStatus

__all__ = ["draw_tree"]

_HELD = {
    CheckpointKind.FULL: "memory {}, ",
    CheckpointKind.FILES: "no processes, ",
    CheckpointKind.PROCESS: "program {}, ",
}


def draw_tree(session: SessionStatus) -> str:
    """One line about the session, and below it which checkpoint or branch was made from which.

    An only child that is a checkpoint is not indented, so that a long row of checkpoints stays readable.
    """
    below: defaultdict[str | None, list[_Item]] = defaultdict(list)
    for branch in session.branches:
        below[branch.record.head].append(_Item(f"▶ {branch.name}  {branch.state}"))
    for checkpoint in session.checkpoints:
        record = checkpoint.record
        about = _HELD[record.kind].format(megabytes(record.memory_bytes))
        if checkpoint.files_bytes is not None:
            about += f"files {megabytes(checkpoint.files_bytes)}, "
        below[record.parent].append(_Item(f"● {record.name}  {about}{age(record.created_at)}", record.id))
    name = f" ({session.record.name})" if session.record.name else ""
    lines = [f"{session.id}{name}  base {session.base_name}, started in {session.record.workspace}"]
    waiting = _with_prefixes(below[None], "")
    while waiting:
        item, prefix, indent = waiting.pop()
        lines.append(prefix + item.label)
        if item.checkpoint is not None:
            waiting += _with_prefixes(below[item.checkpoint], indent)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Item:
    """A line of the tree; with the id of a checkpoint, there may be more below it."""

    label: str
    checkpoint: str | None = None


def _with_prefixes(items: list[_Item], indent: str) -> list[tuple[_Item, str, str]]:
    """Each item with its prefix and that of the lines below it; the last item first."""
    if len(items) == 1 and items[0].checkpoint is not None:
        return [(items[0], indent, indent)]
    drawn = [(item, f"{indent}├─ ", f"{indent}│  ") for item in items[:-1]]
    drawn += [(item, f"{indent}└─ ", f"{indent}   ") for item in items[-1:]]
    return drawn[::-1]
