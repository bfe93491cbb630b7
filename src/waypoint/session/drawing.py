"""A session as people read it: the tree of its checkpoints and branches, with sizes and ages."""

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waypoint.model import CheckpointKind

if TYPE_CHECKING:
    from waypoint.session.session import Branch, Session

__all__ = ["age", "draw_tree", "megabytes", "status"]

_HELD = {
    CheckpointKind.FULL: "memory {}, ",
    CheckpointKind.FILES: "no processes, ",
    CheckpointKind.PROCESS: "program {}, ",
}


def draw_tree(session: "Session") -> str:
    """The session in one line, and below it what was made from what.

    An only descendant stands straight below its parent, so that a long row of checkpoints stays readable.
    """
    below: defaultdict[str | None, list[_Item]] = defaultdict(list)
    for branch in session.branches():
        below[branch.record.head].append(_Item(f"▶ {branch.name}  {status(branch)}"))
    for checkpoint in session.checkpoints():
        memory = _HELD[checkpoint.kind].format(megabytes(checkpoint.memory_bytes))
        files = megabytes(session.files_bytes(checkpoint))
        about = f"{memory}files {files}, {age(checkpoint.created_at)}"
        below[checkpoint.parent].append(_Item(f"● {checkpoint.name}  {about}", checkpoint.id))
    name = f" ({session.record.name})" if session.record.name else ""
    lines = [f"{session.id}{name}  base {session.base_name}, started in {session.record.workspace}"]
    waiting = _lead_in(below[None], "")
    while waiting:
        item, lead, indent = waiting.pop()
        lines.append(lead + item.label)
        if item.checkpoint is not None:
            waiting += _lead_in(below[item.checkpoint], indent)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Item:
    """A line of the tree; with the id of a checkpoint, there may be more below it."""

    label: str
    checkpoint: str | None = None


def _lead_in(items: list[_Item], indent: str) -> list[tuple[_Item, str, str]]:
    """Each item with what stands before it and before the lines below it; the last one first."""
    if len(items) == 1 and items[0].checkpoint is not None:
        return [(items[0], indent, indent)]
    placed = [(item, f"{indent}├─ ", f"{indent}│  ") for item in items[:-1]]
    placed += [(item, f"{indent}└─ ", f"{indent}   ") for item in items[-1:]]
    return placed[::-1]


def status(branch: "Branch") -> str:
    if branch.record.is_suspended:
        return "suspended"
    return "running" if branch.is_running() else "dead"


def age(moment: float) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = max(0, int(time.time() - moment))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def megabytes(size_bytes: int) -> str:
    if size_bytes >= 1 << 20:
        return f"{size_bytes / (1 << 20):.1f} MiB"
    return f"{size_bytes / 1024:.0f} KiB"
