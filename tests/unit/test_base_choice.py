"""What the user says, and the base it means."""

from pathlib import Path

import pytest

from waypoint.errors import NotFound, UsageError
from waypoint.model import BaseKind, BaseRecord, ImageConfig
from waypoint.store.base_choice import find_stored, is_root_file_system, resolve_base
from waypoint.store.layout import Layout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for directory in ("bin", "etc"):
        (tmp_path / "root" / directory).mkdir(parents=True)
    (tmp_path / "root/bin/sh").symlink_to("/usr/bin/sh")
    return tmp_path / "root"


def test_a_root_file_system_has_a_shell_and_an_etc(root: Path, tmp_path: Path) -> None:
    assert is_root_file_system(root)
    assert not is_root_file_system(tmp_path)
    assert not is_root_file_system(Path("/"))  # the host's own is asked for by name


def test_a_directory_that_is_a_root_file_system_becomes_the_base(root: Path, tmp_path: Path) -> None:
    base, start = resolve_base(Layout(tmp_path), root, None)
    assert (base.kind, base.path, start) == (BaseKind.DIRECTORY, root, "/")


def test_a_base_that_is_none_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a root file system"):
        resolve_base(Layout(tmp_path), None, tmp_path)
    with pytest.raises(NotFound, match="no directory"):
        resolve_base(Layout(tmp_path), None, tmp_path / "none")
    with pytest.raises(NotFound, match="no directory"):
        resolve_base(Layout(tmp_path), tmp_path / "none", None)


STORED = BaseRecord(
    id="ab" * 32,
    names=("localhost/mine:latest",),
    created_at=1.0,
    size_bytes=1,
    source="a test",
    config=ImageConfig(workdir="/srv"),
)


def find(text: str) -> BaseRecord:
    if text != "mine":
        raise NotFound("base", text)
    return STORED


def test_a_stored_base_lies_in_the_pool_and_says_where_to_start(tmp_path: Path) -> None:
    place = tmp_path / "pool/bases" / STORED.id
    (place / "real").mkdir(parents=True)
    (place / "srv").symlink_to("/real")  # leads into the base, not to the host's
    (place / "leads-out").symlink_to("/proc")
    base, start = resolve_base(Layout(tmp_path), None, "mine", STORED)
    assert (base.path, start) == (place, "/srv")
    assert resolve_base(Layout(tmp_path), "/real", "mine", STORED)[1] == "/real"
    for missing in ("/none", "/leads-out", "/../none"):
        with pytest.raises(NotFound, match="no directory"):
            resolve_base(Layout(tmp_path), missing, "mine", STORED)


def test_a_name_is_that_of_a_base_unless_it_is_a_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_stored("mine", find) is STORED
    for other in (None, "host", root, str(root), "./mine", "../mine"):
        assert find_stored(other, find) is None
    monkeypatch.chdir(root.parent)
    (root / "mine").mkdir()
    assert find_stored("root/mine", find) is None
    for missing in ("none", "team/none:1", ".."):
        with pytest.raises(NotFound):
            find_stored(missing, find)
