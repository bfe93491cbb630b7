"""How the tree of a session is drawn."""

from pathlib import Path

from waypoint.cli.text_tree import draw_tree
from waypoint.cli.units import age, megabytes
from waypoint.model import Base, BaseKind, BranchRecord, CheckpointRecord, SessionRecord
from waypoint.session.status import BranchState, BranchStatus, CheckpointStatus, SessionStatus


def session_with(checkpoints: dict[str, str | None], branches: dict[str, str | None]) -> SessionStatus:
    """A session in which each checkpoint and branch has the parent it is mapped to."""
    return SessionStatus(
        record=SessionRecord(
            id="s",
            name=None,
            base=Base(kind=BaseKind.HOST, path=Path("/")),
            workspace="/w",
            created_at=0,
            is_open=True,
        ),
        base_name="/",
        directory=Path("/s"),
        checkpoints=tuple(_checkpoint(name, parent) for name, parent in checkpoints.items()),
        branches=tuple(_branch(name, head) for name, head in branches.items()),
    )


def _checkpoint(name: str, parent: str | None) -> CheckpointStatus:
    record = CheckpointRecord(
        id=name, session_id="s", name=name, parent=parent, branch="main", created_at=0, memory_bytes=2048
    )
    return CheckpointStatus(record=record, parent=parent, saved_pid=1, files_bytes=5 << 20)


def _branch(name: str, head: str | None) -> BranchStatus:
    return BranchStatus(
        record=BranchRecord(session_id="s", name=name, incarnation=name, init_pid=1, head=head, created_at=0),
        state=BranchState.RUNNING,
        head=head,
        directory=Path("/s") / name,
        mount=Path("/m") / name,
        layer=Path("/l") / name,
        usage={},
        made_by=None,
    )


def drawn(session: SessionStatus) -> list[str]:
    head, *lines = draw_tree(session).splitlines()
    assert head == "s  base /, started in /w"
    return [line.partition("  memory")[0].removesuffix("  running") for line in lines]


def test_the_tree_of_a_session_without_checkpoints_is_its_branch() -> None:
    assert drawn(session_with({}, {"main": None})) == ["└─ ▶ main"]


def test_children_of_a_checkpoint_are_drawn_below_it() -> None:
    tree = session_with({"a": None, "b": "a", "c": "a", "d": "c"}, {"main": "d", "one": "a", "two": "b"})
    assert drawn(tree) == [
        "● a",
        "├─ ▶ one",
        "├─ ● b",
        "│  └─ ▶ two",
        "└─ ● c",
        "   ● d",
        "   └─ ▶ main",
    ]


def test_a_thousand_checkpoints_in_a_row_are_drawn_in_one_column() -> None:
    chain: dict[str, str | None] = {"c0": None, **{f"c{n}": f"c{n - 1}" for n in range(1, 2000)}}
    lines = drawn(session_with(chain, {"main": "c1999"}))
    assert lines == [*(f"● c{n}" for n in range(2000)), "└─ ▶ main"]


def test_a_fork_at_every_one_of_many_checkpoints_can_be_drawn() -> None:
    chain: dict[str, str | None] = {"c0": None, **{f"c{n}": f"c{n - 1}" for n in range(1, 2000)}}
    lines = drawn(session_with(chain, {f"b{n}": f"c{n}" for n in range(2000)}))
    assert len(lines) == 4000


def test_sizes_and_ages_use_a_suitable_unit() -> None:
    assert [megabytes(size) for size in (0, 2048, 5 << 20)] == ["0 KiB", "2 KiB", "5.0 MiB"]
    assert age(0).endswith("d ago")


def test_the_ancestors_of_a_checkpoint_are_listed_newest_first() -> None:
    session = session_with({"a": None, "b": "a", "c": "b", "other": "a"}, {"main": "c"})
    assert session.ancestry("c") == ["c", "b", "a"]
    assert session.ancestry(None) == []
