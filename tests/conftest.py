"""Fixtures on the real kernel: one state directory for the run, one session for a test, and a leak check.

Tests marked ``kernel`` or ``e2e`` need root, btrfs, loop devices and CRIU. A machine without them skips
these tests and says why; with CI set, that is a failure.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import Holdings, look_at_host
from support.limited import MakeLimited
from support.state_directory import new_state_dir
from support.workspace import new_workspace
from waypoint import Session, Waypoint
from waypoint.model import Limits


def pytest_configure() -> None:
    """A run in the background (``make test &`` in a script) ignores interrupts; so would every process it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its directory, which says what it needs; run the fast ones first."""
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
    """A state directory of this run only."""
    with new_state_dir() as path:
        yield path


@pytest.fixture(scope="session")
def debian(state_dir: Path) -> str:
    """The name of a Debian base with a C compiler in the run's pool, made once for all tests that build on it."""
    with Waypoint(state_dir) as opened:
        opened.bases(dict(os.environ)).bootstrap("debian:bookworm", include=["tcc", "libc6-dev"])
    return "debian:bookworm"


@pytest.fixture
def waypoint(state_dir: Path) -> Iterator[Waypoint]:
    with Waypoint(state_dir) as opened:
        yield opened


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory on the host's root file system for a session to start in."""
    with new_workspace() as path:
        yield path


@pytest.fixture
def session(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[Session]:
    """A session over the host's root, removed after the test."""
    created = waypoint.create(workspace)
    yield created
    if any(existing.id == created.id for existing in waypoint.sessions()):
        created.cleanup(force=True)


@pytest.fixture
def limited(waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None) -> Iterator[MakeLimited]:
    """A function that makes sessions with limits over the host's root; they are removed after the test."""
    made: list[Session] = []

    def make(limits: Limits) -> Session:
        made.append(waypoint.create(workspace, limits=limits))
        return made[-1]

    yield make
    for session in made:
        if any(existing.id == session.id for existing in waypoint.sessions()):
            session.cleanup(force=True)


@pytest.fixture
def leaves_nothing_behind(state_dir: Path) -> Iterator[None]:
    """Fail the test that leaks, not the one that trips over the leak later."""
    before = look_at_host(state_dir)
    yield
    left = look_at_host(state_dir) - before
    assert left == Holdings(), f"left behind: {left}"
