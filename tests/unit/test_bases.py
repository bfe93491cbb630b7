"""What the user says, and the base it means."""

from pathlib import Path

import pytest

from waypoint.errors import InvalidName, NotFound, UsageError
from waypoint.model import BaseKind
from waypoint.store.bases import is_root_file_system, resolve_base
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
    with pytest.raises(NotFound, match="no base named 'none'"):
        resolve_base(Layout(tmp_path), None, "none")
    with pytest.raises(InvalidName):
        resolve_base(Layout(tmp_path), None, "..")
    with pytest.raises(NotFound, match="no directory"):
        resolve_base(Layout(tmp_path), tmp_path / "none", None)


def test_a_named_base_lies_in_the_pool(root: Path, tmp_path: Path) -> None:
    (tmp_path / "pool/bases/mine").mkdir(parents=True)
    base, start = resolve_base(Layout(tmp_path), None, "mine")
    assert (base.path, start) == (tmp_path / "pool/bases/mine", "/")
