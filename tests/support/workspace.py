"""A directory on the host's root file system for a session to start in."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["new_workspace"]


@contextmanager
def new_workspace() -> Iterator[Path]:
    path = Path(f"/var/tmp/waypoint-workspace-{secrets.token_hex(4)}")
    path.mkdir()
    yield path
    shutil.rmtree(path)
