"""A directory for saved memory, below one that the caller chose: nobody else may read it, or put something there."""

import os
import stat
from pathlib import Path

from statefork.errors import WrongUse

__all__ = ["make_private_directory"]


def make_private_directory(directory: Path, name: str, *, option: str) -> None:
    """Make a directory of our own below ``directory``, which may be in /tmp, where anyone can have made it.

    It may exist already. Raises WrongUse, with the option to choose another, if others may change ``directory``.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o755)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise WrongUse(f"{directory} may be changed by others", hint=f"choose another {option}=")
    (directory / name).mkdir(mode=0o700, exist_ok=True)
