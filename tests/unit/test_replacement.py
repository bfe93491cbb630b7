"""A finished copy gets its name in one step; an interrupted one is removed by the next copy."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waypoint.errors import CopyFailed
from waypoint.kernel.copy.confined import Destination
from waypoint.kernel.copy.file_tree import CopyJob, copy_tree
from waypoint.kernel.copy.replacement import put_directory, put_file, put_link

LEFTOVER = ".waypoint-copy-0123456789abcdef"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


@pytest.fixture
def at(target: Path) -> Iterator[Callable[..., Destination]]:
    fd = os.open(target, os.O_RDONLY)
    yield lambda *names: Destination(fd, names, "/".join(("target", *names)))
    os.close(fd)
    assert not [
        name for name in os.listdir(target) if name.startswith(".waypoint-copy-") and name != LEFTOVER
    ]


def writing(content: bytes) -> Callable[[int], None]:
    def fill(made: int) -> None:
        os.write(made, content)

    return fill


def tree(tmp_path: Path, *names: str) -> Callable[[int], None]:
    """A function that fills a directory with files that contain "new"; a name with a final slash is a directory."""
    source = tmp_path / "source"
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (source / name).mkdir(exist_ok=True)
        else:
            (source / name).write_text("new")

    def fill(made: int) -> None:
        fd = os.open(source, os.O_RDONLY)
        try:
            copy_tree(fd, made, CopyJob(), "source")
        finally:
            os.close(fd)

    return fill


def content(directory: Path) -> dict[str, str]:
    return {
        os.fspath(path.relative_to(directory)): "/" if path.is_dir() else path.read_text()
        for path in directory.rglob("*")
    }


def test_a_file_replaces_a_file_a_link_and_a_fifo(target: Path, at: Callable[..., Destination]) -> None:
    (target / "file").write_text("old")
    (target / "link").symlink_to("file")
    os.mkfifo(target / "fifo")
    for name in ("link", "fifo", "file", "fresh"):
        put_file(at(name), writing(b"new"))
        assert not (target / name).is_symlink()
    assert content(target) == {"file": "new", "fifo": "new", "fresh": "new", "link": "new"}


def test_a_failed_copy_leaves_the_old_file(target: Path, at: Callable[..., Destination]) -> None:
    (target / "file").write_text("old")

    def fail(made: int) -> None:
        os.write(made, b"half")
        raise OSError(5, "made to fail by the test")

    for names in (("file",), ("missing", "file")):
        with pytest.raises(OSError, match="made to fail"):
            put_file(at(*names), fail)
    assert content(target) == {"file": "old"}


def test_a_directory_is_merged_into_a_directory_and_replaces_other_entries(
    target: Path, at: Callable[..., Destination], tmp_path: Path
) -> None:
    (target / "both").mkdir()
    (target / "both" / "old").write_text("old")
    (target / "both" / "replaced").write_text("old")
    (target / "was-a-file").write_text("old")
    (target / "was-a-link").symlink_to("both")
    put_directory(
        at(), tree(tmp_path, "both/replaced", "was-a-file/in", "was-a-link/in", "fresh/in", "empty/")
    )
    assert content(target) == {
        "both": "/",
        "both/old": "old",
        "both/replaced": "new",
        "was-a-file": "/",
        "was-a-file/in": "new",
        "was-a-link": "/",
        "was-a-link/in": "new",
        "fresh": "/",
        "fresh/in": "new",
        "empty": "/",
    }


def test_a_merge_that_would_replace_a_directory_by_a_file_changes_nothing(
    target: Path, at: Callable[..., Destination], tmp_path: Path
) -> None:
    (target / "a").write_text("old")
    (target / "z").mkdir()
    (target / "z" / "kept").mkdir()
    with pytest.raises(CopyFailed, match="'target/z/kept': a directory is there"):
        put_directory(at(), tree(tmp_path, "a", "z/kept"))
    assert content(target) == {"a": "old", "z": "/", "z/kept": "/"}


def test_missing_directories_appear_together_with_their_content(
    target: Path, at: Callable[..., Destination], tmp_path: Path
) -> None:
    put_file(at("a", "b", "file"), writing(b"new"))
    put_directory(at("c", "d"), tree(tmp_path, "in"))
    put_link(at("e", "link"), "/nowhere")
    put_link(at("link"), "/nowhere")
    os.unlink(target / "e" / "link")
    os.unlink(target / "link")
    assert content(target) == {
        "a": "/", "a/b": "/", "a/b/file": "new", "c": "/", "c/d": "/", "c/d/in": "new", "e": "/",
    }  # fmt: skip
    assert (target / "a").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_an_interrupted_copy_is_removed_by_the_next(
    target: Path, at: Callable[..., Destination], kind: str
) -> None:
    if kind == "file":
        (target / LEFTOVER).write_text("half")
    elif kind == "link":
        (target / LEFTOVER).symlink_to("/")
    else:
        (target / LEFTOVER / "deep").mkdir(parents=True)
        (target / LEFTOVER / "deep" / "half").write_text("half")
    put_file(at("file"), writing(b"new"))
    assert content(target) == {"file": "new"}


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_running_copy_is_left_alone(target: Path, at: Callable[..., Destination], kind: str) -> None:
    if kind == "file":
        (target / LEFTOVER).write_text("half")
    else:
        (target / LEFTOVER).mkdir()
    fd = os.open(target / LEFTOVER, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    put_file(at("file"), writing(b"new"))
    os.close(fd)
    assert sorted(content(target)) == [LEFTOVER, "file"]


def test_an_unfinished_copy_is_not_part_of_a_tree(
    target: Path, at: Callable[..., Destination], tmp_path: Path
) -> None:
    put_directory(at(), tree(tmp_path, "file", LEFTOVER))
    assert content(target) == {"file": "new"}
