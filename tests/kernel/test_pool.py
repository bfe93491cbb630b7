"""The pool on the real kernel: loop file, mount, growth, reboot, and nothing left behind."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.errors import Busy, StoreError
from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.storage import loop
from waypoint.kernel.storage.loop import attached_loop, find_loop
from waypoint.kernel.storage.pool_filesystem import make_btrfs, make_sparse_file
from waypoint.kernel.storage.subvolumes import create_subvolume
from waypoint.kernel.syscalls import mount, unmount
from waypoint.store import pool as pool_module
from waypoint.store.pool import Pool, PoolKind, create_pool, open_pool, pool_usage, resize_pool, unmount_pool
from waypoint.store.pool_record import record_path

pytestmark = pytest.mark.kernel

MIB = 1 << 20
SIZE = 512 * MIB


def say_nothing(_: str) -> None:
    pass


def mounts_under(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split(" ")[4].startswith(os.fspath(directory))]


def loops_under(directory: Path) -> list[str]:
    backing = [path.read_text().strip() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [path for path in backing if path.startswith(os.fspath(directory))]


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state directory; the test fails if a mount or loop device of it is left behind."""
    if os.geteuid() != 0:
        pytest.fail("kernel tests need root")
    state = tmp_path / "state"
    yield state
    unmount_pool(state)
    assert mounts_under(tmp_path) == []
    assert loops_under(tmp_path) == []


@pytest.fixture
def pool(state_dir: Path) -> Pool:
    return create_pool(state_dir, size_bytes=SIZE, progress=say_nothing)


def test_a_new_pool_is_a_private_btrfs_on_a_sparse_file_and_setup_says_so(state_dir: Path) -> None:
    said: list[str] = []
    pool = create_pool(state_dir, size_bytes=SIZE, progress=said.append)
    assert pool.kind is PoolKind.LOOP
    assert pool.image.stat().st_blocks * 512 < 16 * MIB
    assert pool.root.stat().st_mode & 0o777 == 0o700
    assert "btrfs-loop" in said[-1]
    create_subvolume(pool.root / "live")
    recorded = json.loads(record_path(state_dir).read_text())
    assert (recorded["kind"], recorded["size_bytes"], recorded["uuid"]) == ("btrfs-loop", SIZE, pool.uuid)


def test_the_loop_device_uses_direct_io_and_frees_itself(pool: Pool) -> None:
    device = find_loop(pool.image)
    assert device is not None
    facts = Path("/sys/block") / device.name / "loop"
    assert (facts / "dio").read_text().strip() == "1"
    assert (facts / "autoclear").read_text().strip() == "1"


def test_a_second_setup_keeps_the_pool_and_its_content(pool: Pool) -> None:
    (pool.root / "note").write_text("kept")
    said: list[str] = []
    again = create_pool(pool.state_dir, size_bytes=2 * SIZE, progress=said.append)
    assert again == pool
    assert (pool.root / "note").read_text() == "kept"
    assert "waypoint pool resize" in said[0]


def test_after_a_reboot_the_pool_is_mounted_again_with_its_content(pool: Pool) -> None:
    (pool.root / "note").write_text("kept")
    unmount_pool(pool.state_dir)
    assert not (pool.root / "note").exists()
    assert find_loop(pool.image) is None
    assert open_pool(pool.state_dir) == pool
    assert (pool.root / "note").read_text() == "kept"


def test_concurrent_openers_after_a_reboot_mount_the_pool_once(pool: Pool) -> None:
    unmount_pool(pool.state_dir)
    threads = [threading.Thread(target=open_pool, args=(pool.state_dir,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mounts_under(pool.state_dir)) == 1
    assert len(loops_under(pool.state_dir)) == 1


def test_a_pool_can_grow_while_in_use(pool: Pool) -> None:
    with (pool.root / "open").open("w") as stream:
        grown = resize_pool(pool, 2 * SIZE)
        stream.write("still writable")
    assert pool_usage(grown).total_bytes == 2 * SIZE
    assert open_pool(pool.state_dir) == grown
    unmount_pool(pool.state_dir)
    assert pool_usage(open_pool(pool.state_dir)).total_bytes == 2 * SIZE


def test_a_pool_cannot_shrink(pool: Pool) -> None:
    with pytest.raises(StoreError, match="cannot shrink"):
        resize_pool(pool, SIZE // 2)
    assert pool.image.stat().st_size == SIZE
    assert pool_usage(pool).total_bytes == SIZE


def test_usage_shows_what_was_written(pool: Pool) -> None:
    before = pool_usage(pool)
    (pool.root / "big").write_bytes(os.urandom(32 * MIB))
    os.sync()
    after = pool_usage(pool)
    assert after.used_bytes - before.used_bytes >= 32 * MIB
    assert after.free_bytes < before.free_bytes


def test_a_pool_with_an_open_file_is_not_unmounted(pool: Pool) -> None:
    with (
        (pool.root / "open").open("w"),
        pytest.raises(Busy, match="in use"),
    ):
        unmount_pool(pool.state_dir)
    assert open_pool(pool.state_dir) == pool
    assert len(mounts_under(pool.state_dir)) == 1


def test_a_process_with_the_pool_in_its_own_mount_namespace_is_reported(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RELEASE_TIMEOUT_S", 0.1)
    command = ["unshare", "--mount", "--propagation", "private", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"on")
        holder.stdin.flush()
        assert holder.stdout.read(2) == b"on"
        with pytest.raises(Busy, match="in use") as refused:
            unmount_pool(pool.state_dir)
        holder.communicate()
    assert f"pid {holder.pid} (cat) has it mounted at {pool.root}" in str(refused.value.hint)
    assert open_pool(pool.state_dir) == pool


def test_a_pool_under_a_live_overlay_is_not_unmounted(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RELEASE_TIMEOUT_S", "CLOSE_TIMEOUT_S"):
        monkeypatch.setattr(pool_module, name, 0.1)
    upper, work, merged = pool.root / "upper", pool.root / "work", tmp_path / "merged"
    for path in (upper, work, merged):
        path.mkdir()
    mount("overlay", merged, "overlay", 0, f"lowerdir=/etc,upperdir={upper},workdir={work}")
    try:
        with pytest.raises(Busy, match="in use"):
            unmount_pool(pool.state_dir)
        assert (pool.root / "upper").is_dir(), "the pool must still be mounted"
        assert len(loops_under(pool.state_dir)) == 1
    finally:
        unmount(merged)


def test_an_interrupted_setup_is_continued_without_formatting_again(pool: Pool) -> None:
    (pool.root / "note").write_text("kept")
    unmount_pool(pool.state_dir)
    record_path(pool.state_dir).unlink()
    (pool.state_dir / "pool.img.new").write_text("half-made")
    again = create_pool(pool.state_dir, size_bytes=2 * SIZE, progress=say_nothing)
    assert again == pool
    assert (pool.root / "note").read_text() == "kept"


def test_a_foreign_file_at_the_path_of_the_pool_is_left_alone(state_dir: Path) -> None:
    state_dir.mkdir()
    image = state_dir / "pool.img"
    make_sparse_file(image, SIZE)
    make_btrfs(image, "someone-elses")
    with pytest.raises(StoreError, match="not a pool of Waypoint"):
        create_pool(state_dir, size_bytes=SIZE, progress=say_nothing)
    assert image.stat().st_size == SIZE


def test_a_size_too_small_is_refused_before_anything_is_made(state_dir: Path) -> None:
    with pytest.raises(StoreError, match="too few"):
        create_pool(state_dir, size_bytes=MIB, progress=say_nothing)
    assert not (state_dir / "pool.img").exists()


def test_without_loop_devices_the_pool_is_a_directory_and_setup_says_so(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise PermissionError(1, "Operation not permitted", "/dev/loop-control")

    monkeypatch.setattr(loop, "_free_device", refuse)
    said: list[str] = []
    pool = create_pool(state_dir, size_bytes=SIZE, progress=said.append)
    assert pool.kind is PoolKind.DIRECTORY
    assert any("checkpoints will copy changed files" in line for line in said)
    assert not pool.image.exists()
    assert open_pool(state_dir) == pool


def test_on_a_btrfs_the_pool_is_a_subvolume(state_dir: Path, tmp_path: Path) -> None:
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    make_sparse_file(image, SIZE)
    make_btrfs(image, "disk")
    disk.mkdir()
    with attached_loop(image, direct_io=False) as device:
        mount(os.fspath(device), disk, "btrfs")
    try:
        pool = create_pool(disk / "state", progress=say_nothing)
        assert pool.kind is PoolKind.NATIVE
        assert not pool.image.exists()
        assert run_tool(["btrfs", "subvolume", "show", os.fspath(pool.root)], timeout_s=10).status == 0
        unmount_pool(disk / "state")
        assert open_pool(disk / "state") == pool
    finally:
        unmount(disk)


def test_an_unmounted_loop_device_is_freed_after_the_block(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    make_sparse_file(image, SIZE)
    with attached_loop(image, direct_io=False) as device:
        assert find_loop(image) == device
    assert find_loop(image) is None
