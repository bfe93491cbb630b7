"""Which base a user's words mean."""

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
    assert not is_root_file_system(Path("/"))  # the host's own root is chosen by name


def test_a_directory_that_is_a_root_file_system_becomes_the_base(root: Path, tmp_path: Path) -> None:
    base, start = resolve_base(Layout(tmp_path), root, None)
    assert (base.kind, base.path, start) == (BaseKind.DIRECTORY, root, "/")


def test_what_is_not_a_root_file_system_is_refused(root: Path, tmp_path: Path) -> None:
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


def test_a_stored_base_is_in_the_pool_and_sets_the_start_directory(tmp_path: Path) -> None:
    base_directory = tmp_path / "pool/bases" / STORED.id
    (base_directory / "real").mkdir(parents=True)
    (base_directory / "srv").symlink_to("/real")  # a link into the base, not into the host
    (base_directory / "leads-out").symlink_to("/proc")
    base, start = resolve_base(Layout(tmp_path), None, "mine", STORED)
    assert (base.path, start) == (base_directory, "/srv")
    assert resolve_base(Layout(tmp_path), "/real", "mine", STORED)[1] == "/real"
    for missing in ("/none", "/leads-out", "/../none"):
        with pytest.raises(NotFound, match="no directory"):
            resolve_base(Layout(tmp_path), missing, "mine", STORED)


def test_a_word_is_the_name_of_a_base_unless_it_is_a_path(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_stored("mine", find) is STORED
    for other in (None, "host", root, str(root), "./mine", "../mine"):
        assert find_stored(other, find) is None
    monkeypatch.chdir(root.parent)
    (root / "mine").mkdir()
    assert find_stored("root/mine", find) is None
    for missing in ("none", "team/none:1", ".."):
        with pytest.raises(NotFound):
            find_stored(missing, find)
