"""The tree of snapshots, and how it is drawn."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statefork.backend import Command
from statefork.errors import StateForkError, UnknownSnapshot

__all__ = ["SnapshotNode", "SnapshotTree"]


@dataclass(slots=True, kw_only=True)
class SnapshotNode:
    """A snapshot. A virtual one holds no state but the commands that lead to it from its parent, and how they ended;
    ``replay_seconds`` is what the commands since its physical ancestor took."""

    snapshot_id: str
    parent_id: str | None = None
    children: list[str] = field(default_factory=list)
    is_virtual: bool = False
    replay_commands: list[Command] = field(default_factory=list)
    replay_exit_codes: list[int] = field(default_factory=list)
    replay_seconds: float = 0.0


class SnapshotTree:
    """Snapshots by id. Nodes are only added: a parent is always there before its child."""

    def __init__(self) -> None:
        self.nodes: dict[str, SnapshotNode] = {}

    def add(self, node: SnapshotNode) -> None:
        if node.parent_id is not None:
            self.node(node.parent_id).children.append(node.snapshot_id)
        self.nodes[node.snapshot_id] = node

    def node(self, snapshot_id: str) -> SnapshotNode:
        try:
            return self.nodes[snapshot_id]
        except (KeyError, TypeError) as error:  # TypeError: it cannot be a key, so it is not an id
            raise UnknownSnapshot(snapshot_id) from error

    def lineage(self, snapshot_id: str) -> list[SnapshotNode]:
        """The path from the nearest physical ancestor (or the snapshot itself, if that is physical) to the snapshot."""
        path = [self.node(snapshot_id)]
        while path[-1].is_virtual:
            parent = path[-1].parent_id
            if parent is None or len(path) > len(self.nodes):
                raise StateForkError(f"snapshot {snapshot_id} has no physical ancestor to start from")
            path.append(self.node(parent))
        return path[::-1]

    def draw(self, current: Mapping[str, str | None], last: Mapping[str, str | None]) -> str:
        """The tree as text. ``current`` and ``last`` say for each branch which snapshot it came from and made last."""
        if not self.nodes:
            return "No snapshot tree available."
        lines = ["Snapshot Tree:"]
        for node, depth in self._walk():
            mark = _mark(node.snapshot_id, current, last)
            lines.append(f"{'  ' * depth} - {node.snapshot_id}{mark}")
        return "\n".join(lines)

    def _walk(self) -> Iterator[tuple[SnapshotNode, int]]:
        todo = [(node, 0) for node in reversed(self.nodes.values()) if node.parent_id is None]
        while todo:
            node, depth = todo.pop()
            yield node, depth
            todo.extend((self.nodes[child], depth + 1) for child in reversed(node.children))


def _mark(snapshot_id: str, current: Mapping[str, str | None], last: Mapping[str, str | None]) -> str:
    here = [branch for branch, at in current.items() if at == snapshot_id]
    made = [branch for branch, at in last.items() if at == snapshot_id and branch not in here]
    if len(current) <= 1:  # one branch: as it was before there were several
        return " (current)" if here else " (last)" if made else ""
    parts = [f"{word}: {', '.join(names)}" for word, names in (("current", here), ("last", made)) if names]
    return f" ({'; '.join(parts)})" if parts else ""
