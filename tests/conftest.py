"""Fixtures on the real kernel: one state directory for the run, one session for a test, and a leak check.

Tests marked ``kernel`` or ``e2e`` need root, btrfs, loop devices and CRIU. At home a machine without them
skips these tests aloud; with CI set, that is a failure.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import Holdings, look_at_host, sweep
from waypoint import Session, Waypoint
from waypoint.config import DEFAULT_STATE_DIR
from waypoint.errors import HostError, StoreError
from waypoint.kernel.provision import find_prefix_criu
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout

POOL_BYTES = 12 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The directory says what a test needs; the fast ones come first."""
    for item in items:
        for mark in ("kernel", "e2e"):
            if f"/tests/{mark}/" in str(item.path):
                item.add_marker(mark)
    items.sort(
        key=lambda item: (
            item.get_closest_marker("e2e") is not None,
            item.get_closest_marker("kernel") is not None,
        )
    )


@pytest.fixture(scope="session")
def state_dir() -> Iterator[Path]:
    """A state directory of this run only, removed with all it holds at the end."""
    path = Path(f"/var/tmp/waypoint-tests-{secrets.token_hex(4)}")
    path.mkdir()
    if find_prefix_criu(Layout(Path(DEFAULT_STATE_DIR)).criu_prefix) is not None:
        Layout(path).criu_prefix.symlink_to(Layout(Path(DEFAULT_STATE_DIR)).criu_prefix)  # saves the download
    try:
        prepare_host(path, pool_size_bytes=POOL_BYTES, proxies=dict(os.environ), progress=lambda _: None)
    except (HostError, StoreError) as error:
        shutil.rmtree(path)
        if os.environ.get("CI"):
            raise
        pytest.skip(f"this host cannot checkpoint: {error}")
    yield path
    sweep(path)
    shutil.rmtree(path)


@pytest.fixture
def waypoint(state_dir: Path) -> Iterator[Waypoint]:
    with Waypoint(state_dir) as opened:
        yield opened


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory on the host's root file system for a session to start in."""
    path = Path(f"/var/tmp/waypoint-workspace-{secrets.token_hex(4)}")
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def session(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[Session]:
    """A session over the host's root, gone after the test."""
    created = waypoint.create(workspace)
    yield created
    if any(existing.id == created.id for existing in waypoint.sessions()):
        created.cleanup(force=True)


@pytest.fixture
def leaves_nothing_behind(state_dir: Path) -> Iterator[None]:
    """Fail the test that leaks, not the one that trips over the leak later."""
    before = look_at_host(state_dir)
    yield
    left = look_at_host(state_dir) - before
    assert left == Holdings(), f"left behind: {left}"
