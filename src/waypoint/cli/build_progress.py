"""For verbs that make a base: the caller's proxies and logins, and the output of the programs that make it."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from waypoint.cli.host import PROXY_VARIABLES
from waypoint.errors import BuildFailed
from waypoint.kernel.bases.buildah import Output
from waypoint.session.bases.stored_bases import Bases
from waypoint.session.waypoint import Waypoint

__all__ = ["bases_of", "build_progress"]

_LOGIN_VARIABLES = ("REGISTRY_AUTH_FILE",)
_KEPT_BYTES = 1 << 12


def bases_of(waypoint: Waypoint) -> Bases:
    """The bases in the pool, with the caller's proxies and logins for a verb that may fetch something."""
    wanted = (*PROXY_VARIABLES, *_LOGIN_VARIABLES)
    return waypoint.bases({name: os.environ[name] for name in wanted if name in os.environ})


@contextmanager
def build_progress(options: argparse.Namespace) -> Iterator[Output]:
    """Print what the programs that make a base write on standard error as it comes; if quiet, only when they fail."""
    kept = bytearray()

    def keep(data: bytes) -> None:
        kept.extend(data)
        del kept[:-_KEPT_BYTES]

    is_quiet = options.quiet or options.json
    try:
        yield keep if is_quiet else _print_output
    except BuildFailed:
        if is_quiet and not options.json:
            _print_output(bytes(kept))
        raise


def _print_output(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
