"""The catalogue: when changes become visible, and what is refused."""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from waypoint.errors import AlreadyExists, CatalogueTooNew, NotFound, StoreError
from waypoint.model import (
    Base,
    BaseKind,
    BranchRecord,
    CheckpointRecord,
    OperationKind,
    OperationStatus,
    PortRecord,
    SessionRecord,
)
from waypoint.store.catalogue import Catalogue

SESSION = SessionRecord(
    id="0123456789abcdef",
    name="demo",
    base=Base(kind=BaseKind.HOST, path=Path("/")),
    workspace="/srv",
    created_at=1.0,
    is_open=True,
)
BRANCH = BranchRecord(
    session_id=SESSION.id, name="main", incarnation="aa", init_pid=7, head=None, created_at=1.0
)


def checkpoint(id_: str, name: str, parent: str | None = None) -> CheckpointRecord:
    return CheckpointRecord(
        id=id_, session_id=SESSION.id, name=name, parent=parent, branch="main", created_at=2.0, memory_bytes=1
    )


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    opened = Catalogue(tmp_path / "catalogue.db")
    opened.add_session(SESSION)
    opened.put_branch(BRANCH)
    yield opened
    opened.close()


@pytest.mark.parametrize("reference", [SESSION.id, "demo", "0123"])
def test_a_session_is_found_by_id_name_and_unique_prefix(catalogue: Catalogue, reference: str) -> None:
    assert catalogue.session(reference) == SESSION


@pytest.mark.parametrize("reference", ["012", "none", "", "%", "0123456789abcdef0"])
def test_an_unknown_session_is_not_found(catalogue: Catalogue, reference: str) -> None:
    with pytest.raises(NotFound):
        catalogue.session(reference)


def test_a_prefix_of_two_sessions_is_not_found(catalogue: Catalogue) -> None:
    catalogue.add_session(replace(SESSION, id="0123ffff00000000", name=None))
    with pytest.raises(NotFound):
        catalogue.session("0123")


def test_a_port_is_exposed_once_and_removed_with_its_branch(catalogue: Catalogue) -> None:
    catalogue.put_branch(replace(BRANCH, name="side", incarnation="bb"))
    port = PortRecord(session_id=SESSION.id, branch="main", port=80, host_port=8000)
    other_port = replace(port, branch="side", host_port=8001)
    for record in (other_port, port):
        catalogue.add_port(record)
    for clash in (replace(port, host_port=8002), replace(port, port=81)):
        with pytest.raises(AlreadyExists):
            catalogue.add_port(clash)
    with pytest.raises(NotFound):
        catalogue.add_port(replace(port, branch="nobody", host_port=8003))
    assert catalogue.ports(SESSION.id) == [port, other_port]
    catalogue.remove_branch(SESSION.id, "side")
    assert catalogue.ports(SESSION.id) == [port]
    catalogue.forget_session(SESSION.id)
    assert catalogue.host_ports() == set()


def test_a_name_can_be_used_only_once(catalogue: Catalogue) -> None:
    catalogue.add_checkpoint(checkpoint("c1", "point"))
    with pytest.raises(AlreadyExists, match="point"):
        catalogue.add_checkpoint(checkpoint("c2", "point"))
    with pytest.raises(AlreadyExists, match="demo"):
        catalogue.add_session(replace(SESSION, id="ffff"))
    assert catalogue.has_name(SESSION.id, "main")
    assert catalogue.has_name(SESSION.id, "point")
    assert not catalogue.has_name(SESSION.id, "other")


def test_a_failed_transaction_changes_nothing(catalogue: Catalogue) -> None:
    operation = catalogue.begin(OperationKind.SNAPSHOT, SESSION.id, "main", checkpoint="c1")
    with pytest.raises(RuntimeError), catalogue.transaction():
        catalogue.add_checkpoint(checkpoint("c1", "point"))
        catalogue.set_head(SESSION.id, "main", "c1")
        catalogue.end(operation.id, OperationStatus.DONE)
        raise RuntimeError
    assert catalogue.checkpoints(SESSION.id) == []
    assert catalogue.branch(SESSION.id, "main").head is None
    assert [row.id for row in catalogue.unfinished()] == [operation.id]


def test_a_transaction_that_cannot_commit_is_not_left_open(catalogue: Catalogue) -> None:
    with pytest.raises(KeyboardInterrupt), catalogue.transaction():
        raise KeyboardInterrupt
    with pytest.raises(StoreError, match="cannot be used"), catalogue.transaction():
        catalogue._db.execute("ROLLBACK")  # the COMMIT that follows fails
    with catalogue.transaction():
        catalogue.remove_branch(SESSION.id, "main")
    assert catalogue.branches(SESSION.id) == []


def test_a_new_incarnation_replaces_the_old_one_of_a_branch(catalogue: Catalogue) -> None:
    catalogue.put_branch(replace(BRANCH, incarnation="bb", init_pid=8))
    assert catalogue.branches(SESSION.id) == [replace(BRANCH, incarnation="bb", init_pid=8)]


def test_default_numbers_are_never_reused(catalogue: Catalogue) -> None:
    assert [catalogue.next_number(SESSION.id) for _ in range(3)] == [1, 2, 3]


def test_operations_keep_their_steps(catalogue: Catalogue) -> None:
    newest = catalogue.newest_operation()
    operation = catalogue.begin(
        OperationKind.RESTORE, SESSION.id, "main", incarnation="bb", old_incarnation="aa"
    )
    catalogue.end(operation.id, OperationStatus.DONE, total_ms=5.0, phases_ms={"files": 1.5})
    catalogue.record("exec", SESSION.id, "main", 2.0, {"run": 1.0})
    first, second = catalogue.operations_after(newest)
    assert (first.kind, first.incarnation, first.phases_ms) == ("restore", "bb", {"files": 1.5})
    assert (second.kind, second.total_ms) == ("exec", 2.0)
    assert second.began_at <= time.time()
    assert catalogue.unfinished() == []


def test_forgetting_a_session_removes_its_branches_and_checkpoints(catalogue: Catalogue) -> None:
    catalogue.add_checkpoint(checkpoint("c1", "one"))
    catalogue.add_checkpoint(checkpoint("c2", "two", parent="c1"))
    catalogue.set_head(SESSION.id, "main", "c2")
    catalogue.forget_session(SESSION.id)
    assert catalogue.sessions() == []


def test_a_file_that_is_not_a_catalogue_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"catalogue\.db cannot be read"):
        Catalogue(path)
    assert path.read_bytes().startswith(b"not a database")


def test_a_catalogue_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(CatalogueTooNew, match="99"):
        Catalogue(path)
