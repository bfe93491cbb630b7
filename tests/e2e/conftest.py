"""Fixtures for tests through the command line."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli


@pytest.fixture
def cli(state_dir: Path, tmp_path: Path, leaves_nothing_behind: None) -> Iterator[Cli]:
    """The command line; the sessions a test made are gone after it."""
    command_line = Cli(state_dir, tmp_path)
    yield command_line
    for session in command_line("list", "--quiet").splitlines():
        command_line("cleanup", session, "--force")


@pytest.fixture
def shell(cli: Cli, workspace: Path) -> str:
    """The id of a session that starts in ``workspace``."""
    return cli("init", os.fspath(workspace), "--quiet").partition(",")[0]
