"""Fixtures for tests through the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli
from waypoint import Waypoint


@pytest.fixture
def cli(state_dir: Path, tmp_path: Path, leaves_nothing_behind: None) -> Iterator[Cli]:
    """The command line; the sessions a test made are removed after it."""
    yield Cli(state_dir, tmp_path)
    with Waypoint(state_dir) as opened:
        for session in opened.sessions():
            session.cleanup(force=True)


@pytest.fixture
def shell(cli: Cli, workspace: Path) -> str:
    """The id of a session that starts in ``workspace``."""
    with Waypoint(cli.state_dir) as opened:
        return opened.create(workspace).id


@pytest.fixture
def builder(cli: Cli) -> Iterator[Cli]:
    """The command line; what a test has built, and the sessions over it, are gone after it."""
    before = {base["id"] for base in cli.document("base", "list")["bases"]}
    yield cli
    for session in cli("list", "--quiet").splitlines():
        cli("cleanup", session, "--force")
    for base in cli.document("base", "list")["bases"]:
        if base["id"] not in before:
            cli("base", "rm", base["id"])
