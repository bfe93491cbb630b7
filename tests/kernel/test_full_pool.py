"""A pool with no space left: the operation fails by name, the branch keeps running, nothing half-made is left."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import sweep
from waypoint import Waypoint
from waypoint.errors import PoolFull
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout
from waypoint.store.pool import open_pool, pool_usage, resize_pool

SMALL_BYTES = 400 << 20
LARGER_BYTES = 2 << 30


@pytest.fixture
def small_state_dir(state_dir: Path) -> Iterator[Path]:
    """A state directory with a small pool."""
    path = state_dir.with_name(state_dir.name + "-small")
    path.mkdir()
    Layout(path).criu_prefix.symlink_to(Layout(state_dir).criu_prefix.resolve())
    prepare_host(path, pool_size_bytes=SMALL_BYTES, proxies={}, progress=lambda _: None)
    yield path
    sweep(path)
    shutil.rmtree(path)


def test_a_checkpoint_that_does_not_fit_fails_and_the_branch_keeps_running(
    small_state_dir: Path, workspace: Path
) -> None:
    with Waypoint(small_state_dir) as waypoint:
        session = waypoint.create(workspace)
        try:
            # 200 MB that cannot be compressed or shared, held in memory by a process of the branch.
            hold = "import os, time; held = os.urandom(200 << 20); open('/tmp/held', 'w'); time.sleep(1000)"
            session.exec(f'python3 -c "{hold}" & until [ -e /tmp/held ]; do sleep 0.05; done', timeout_s=120)
            free_bytes = pool_usage(open_pool(small_state_dir)).free_bytes
            filler = small_state_dir / "pool" / "filler"
            with open(filler, "wb") as out:
                out.write(os.urandom(max(0, free_bytes - (100 << 20))))
            with pytest.raises(PoolFull, match="no space left"):
                session.snapshot("too-big")
            assert session.checkpoints() == []
            assert os.listdir(small_state_dir / "pool" / "checkpoints") == []
            assert session.exec("jobs -r | wc -l").output == "1\n"
            filler.unlink()
            resize_pool(open_pool(small_state_dir), LARGER_BYTES)
            session.snapshot("fits")
        finally:
            session.cleanup(force=True)


def test_a_copy_that_does_not_fit_fails_and_leaves_the_old_files(
    small_state_dir: Path, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(100 << 20))
    with Waypoint(small_state_dir) as waypoint:
        session = waypoint.create(workspace)
        try:
            session.write_file("/srv/place/large", "old")
            filler = small_state_dir / "pool" / "filler"
            with open(filler, "wb") as out:
                os.posix_fallocate(
                    out.fileno(), 0, pool_usage(open_pool(small_state_dir)).free_bytes - (60 << 20)
                )
            for source in (tmp_path / "large", tmp_path):
                with pytest.raises(PoolFull, match="no space left"):
                    session.upload(source, "/srv/place/large" if source.is_file() else "/srv/place")
                assert os.listdir(session.directory / "srv" / "place") == ["large"]
                assert session.read_file("/srv/place/large") == b"old"
            filler.unlink()
        finally:
            session.cleanup(force=True)
