"""State directories for tests, with a pool and CRIU, removed afterwards."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.leaks import sweep
from waypoint.config import DEFAULT_STATE_DIR
from waypoint.errors import HostError, StoreError
from waypoint.kernel.criu.provision import find_prefix_criu
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout

__all__ = ["new_state_dir"]

POOL_BYTES = 12 << 30


@contextmanager
def new_state_dir() -> Iterator[Path]:
    """Make one, and remove it with its contents at the end. If the host cannot, tests are skipped, or fail in CI."""
    path = Path(f"/var/tmp/waypoint-tests-{secrets.token_hex(4)}")
    path.mkdir()
    if find_prefix_criu(Layout(Path(DEFAULT_STATE_DIR)).criu_prefix) is not None:
        Layout(path).criu_prefix.symlink_to(Layout(Path(DEFAULT_STATE_DIR)).criu_prefix)  # saves the download
    try:
        prepare_host(path, pool_size_bytes=POOL_BYTES, proxies=dict(os.environ), progress=lambda _: None)
    except (HostError, StoreError) as error:
        sweep(path)
        shutil.rmtree(path)
        if os.environ.get("CI"):
            raise
        pytest.skip(f"this host cannot checkpoint: {error}")
    yield path
    sweep(path)
    shutil.rmtree(path)
