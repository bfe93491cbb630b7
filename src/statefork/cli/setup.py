"""``statefork setup``: download the tools of a backend that the host's own packages do not have."""

import argparse
import os
import sys

from statefork.cli.answer import Answer
from statefork.errors import BackendUnavailable
from statefork.runsc_provision import provision_runsc
from waypoint.errors import WaypointError

__all__ = ["SETUPS", "setup"]

SETUPS = ("gvisor",)


def setup(options: argparse.Namespace) -> Answer:
    """Download the tools of a backend, unless they are there already."""
    try:
        program = provision_runsc(lambda text: print(text, file=sys.stderr), proxies=dict(os.environ))
    except WaypointError as error:
        raise BackendUnavailable(options.backend, str(error), remedy=error.hint) from error
    return Answer(text=f"{options.backend}: {program}", document={"program": os.fspath(program)})
