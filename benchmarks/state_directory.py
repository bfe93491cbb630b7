"""A state directory for one run, removed with all it holds at the end."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waypoint.config import DEFAULT_STATE_DIR
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout
from waypoint.store.pool import unmount_pool

__all__ = ["state_directory"]

POOL_BYTES = 48 << 30


@contextmanager
def state_directory(purpose: str) -> Iterator[Path]:
    path = Path(f"/var/tmp/waypoint-{purpose}-{secrets.token_hex(4)}")
    path.mkdir()
    prefix = Layout(Path(DEFAULT_STATE_DIR)).criu_prefix
    if prefix.exists():
        Layout(path).criu_prefix.symlink_to(prefix)  # saves the download
    try:
        prepare_host(path, pool_size_bytes=POOL_BYTES, proxies=dict(os.environ), progress=lambda _: None)
        yield path
    finally:
        unmount_pool(path)
        shutil.rmtree(path)
