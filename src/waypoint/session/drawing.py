"""A session as people read it: the tree of its checkpoints and branches, with sizes and ages."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waypoint.session.session import Branch, Session

__all__ = ["age", "draw_tree", "megabytes", "status"]


def draw_tree(session: "Session") -> str:
    """The session in one line, and below it what was made from what."""
    name = f" ({session.record.name})" if session.record.name else ""
    head = f"{session.id}{name}  base {session.record.base.path}, started in {session.record.workspace}"
    return "\n".join([head, *_subtree(session, None, "")])


def _subtree(session: "Session", parent: str | None, indent: str) -> list[str]:
    """The lines below one checkpoint: the branches that stand on it, then the checkpoints made from it."""
    items: list[tuple[str, str | None]] = [
        (f"▶ {branch.name}  {status(branch)}", None)
        for branch in session.branches()
        if branch.record.head == parent
    ]
    for checkpoint in session.checkpoints():
        if checkpoint.parent == parent:
            memory, files = megabytes(checkpoint.memory_bytes), megabytes(session.files_bytes(checkpoint))
            about = f"memory {memory}, files {files}, {age(checkpoint.created_at)}"
            items.append((f"● {checkpoint.name}  {about}", checkpoint.id))
    lines = []
    for number, (label, below) in enumerate(items):
        is_last = number == len(items) - 1
        lines.append(f"{indent}{'└─' if is_last else '├─'} {label}")
        if below is not None:
            lines += _subtree(session, below, indent + ("   " if is_last else "│  "))
    return lines


def status(branch: "Branch") -> str:
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
