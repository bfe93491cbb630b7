"""The record of the pool, as far as it can be tested without root."""

import json
from pathlib import Path

import pytest

from waypoint.errors import NotPermitted, PoolNotReady, StoreError
from waypoint.kernel.storage.pool_filesystem import btrfs_uuid, make_sparse_file, read_superblock
from waypoint.store.pool import Pool, PoolKind, create_pool, open_pool, pool_usage, resize_pool, unmount_pool
from waypoint.store.pool_record import read_record, record_path, write_record


def directory_pool(state_dir: Path) -> Pool:
    pool = Pool(state_dir=state_dir, kind=PoolKind.DIRECTORY)
    pool.root.mkdir(parents=True)
    write_record(pool)
    return pool


def test_without_a_pool_the_hint_is_setup(tmp_path: Path) -> None:
    for state_dir in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PoolNotReady) as caught:
            open_pool(state_dir)
        assert caught.value.hint == "run: waypoint setup"


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    pool = Pool(
        state_dir=tmp_path,
        kind=PoolKind.LOOP,
        size_bytes=1 << 30,
        uuid="5466aab2-171e-4891-8743-7d14f3c208f8",
        mount_options="discard=async",
        direct_io=True,
    )
    write_record(pool)
    assert read_record(tmp_path) == pool
    assert [path.name for path in tmp_path.iterdir()] == ["pool.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"version": 1}',
        '{"version": 1, "kind": "floppy"}',
        '{"version": 1, "kind": "directory", "colour": "red"}',
        '{"version": 2, "kind": "directory"}',
    ],
)
def test_an_invalid_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    record_path(tmp_path).write_text(text)
    with pytest.raises(StoreError, match=r"pool\.json"):
        open_pool(tmp_path)


def test_the_record_contains_its_format_version(tmp_path: Path) -> None:
    directory_pool(tmp_path)
    assert json.loads(record_path(tmp_path).read_text())["version"] == 1


def test_a_directory_pool_opens_and_reports_its_space(tmp_path: Path) -> None:
    pool = directory_pool(tmp_path)
    assert open_pool(tmp_path) == pool
    assert not pool.is_btrfs
    usage = pool_usage(pool)
    assert 0 < usage.free_bytes <= usage.total_bytes
    assert 0 <= usage.used_bytes <= usage.total_bytes
    unmount_pool(tmp_path)
    assert open_pool(tmp_path) == pool


def test_a_removed_directory_pool_is_not_made_again(tmp_path: Path) -> None:
    directory_pool(tmp_path).root.rmdir()
    with pytest.raises(StoreError, match="no longer exists"):
        open_pool(tmp_path)


def test_a_directory_pool_cannot_be_resized(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no size of its own"):
        resize_pool(directory_pool(tmp_path), 1 << 40)


def test_a_missing_file_of_a_loop_pool_is_reported(tmp_path: Path) -> None:
    write_record(Pool(state_dir=tmp_path, kind=PoolKind.LOOP, size_bytes=1 << 30))
    with pytest.raises(StoreError, match=r"pool\.img no longer exists"):
        open_pool(tmp_path)


def test_making_a_pool_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotPermitted) as caught:
        create_pool(tmp_path / "state", progress=lambda _: None)
    assert "sudo" in caught.value.hint
    assert not (tmp_path / "state").exists()


def test_a_sparse_file_takes_no_space_and_contains_no_btrfs(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    make_sparse_file(path, 1 << 30)
    assert path.stat().st_size == 1 << 30
    assert path.stat().st_blocks == 0
    assert path.stat().st_mode & 0o077 == 0
    assert read_superblock(path) is None


def test_a_file_too_short_for_a_superblock_contains_no_btrfs(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x")
    assert read_superblock(tmp_path / "short") is None


def test_proc_is_not_btrfs() -> None:
    assert btrfs_uuid(Path("/proc")) is None
