"""Look something up in the catalogue, without making, mounting or repairing anything."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise

from waypoint.cli.exec import state_dir_in_force
from waypoint.errors import NotFound, WaypointError
from waypoint.store.catalogue import Catalogue
from waypoint.store.live import catalogue_path

__all__ = ["catalogue_to_read", "is_session", "typed_state_dir"]


def typed_state_dir(words: Sequence[str], program: str) -> str:
    """The state directory that ``--state-dir`` in these words names, or the configured one."""
    typed = [word for option, word in pairwise(words) if option == "--state-dir"]
    typed += [word.partition("=")[2] for word in words if word.startswith("--state-dir=")]
    return state_dir_in_force(typed[-1] if typed else None, program)


@contextmanager
def catalogue_to_read(state_dir: str) -> Iterator[Catalogue | None]:
    """The catalogue, or None if it does not exist or this user may not open it."""
    path = catalogue_path(state_dir)
    if not os.access(path, os.R_OK | os.W_OK):
        yield None
        return
    with closing(Catalogue(path)) as catalogue:
        yield catalogue


def is_session(words: Sequence[str], reference: str, program: str) -> bool:
    """Whether a word means a session: an id, a name or a prefix of an id, with or without a branch."""
    with (
        suppress(WaypointError, OSError),  # if the state cannot be read, no session is known
        catalogue_to_read(typed_state_dir(words, program)) as catalogue,
    ):
        if catalogue is None:
            return False
        with suppress(NotFound):
            return bool(catalogue.session_id(reference.partition(":")[0]))
    return False
