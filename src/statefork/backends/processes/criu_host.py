"""The CRIU of this host, as Waypoint set it up, and how its failures are reported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from statefork.backend import Availability
from statefork.backends.processes import failures as failures
from statefork.errors import BackendFailed
from statefork.record import default_state_dir
from waypoint.config import DEFAULT_STATE_DIR
from waypoint.errors import HostError
from waypoint.kernel.cgroup.group import find_cgroup2
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.criu.program import Criu
from waypoint.kernel.criu.provision import CriuBuild
from waypoint.kernel.criu.refusal import CannotBeSaved
from waypoint.session.context import criu_tool, launcher_path
from waypoint.session.setup import find_criu
from waypoint.store.layout import Layout

__all__ = ["explained", "host_criu", "probe_criu"]

_BAD_SIZE = "has bad size"


def probe_criu() -> Availability:
    """Whether this host can save and restore processes."""
    if os.geteuid() != 0:
        return Availability(is_available=False, reason="it needs root", remedy="run with sudo")
    if not launcher_path().exists():
        return Availability(is_available=False, reason="our init was not built", remedy="make install")
    try:
        find_cgroup2()
    except HostError as error:
        return Availability(is_available=False, reason=str(error), remedy=error.hint)
    build = _build()
    if build is None:
        return Availability(
            is_available=False,
            reason="no CRIU that works on this kernel is installed",
            remedy="fetch one: waypoint setup (or install criu 4.1 or newer so that `criu check` passes)",
        )
    return Availability(is_available=True, detail=f"CRIU {build.version}: {build.command[-1]}")


def host_criu() -> Criu:
    """CRIU; what it finds out about this kernel is kept among StateFork's tools."""
    build = _build()
    if build is None:
        raise BackendFailed(
            "criu", "call of CRIU", "it is no longer installed", hint="fetch it again: waypoint setup"
        )
    tools = default_state_dir(os.environ) / "tools"
    tools.mkdir(parents=True, exist_ok=True, mode=0o700)
    criu = criu_tool(Layout(tools), build.command, build.version)
    if not criu.is_warm():
        criu.warm()
    return criu


@cache
def _build() -> CriuBuild | None:
    return find_criu(Path(DEFAULT_STATE_DIR))


@contextmanager
def explained(operation: str) -> Iterator[None]:
    """Report any failure of the block as one of the backend."""
    with failures.explained("criu", operation):
        try:
            yield
        except CriuFailed as error:
            hint = f"CRIU's log: {error.log_file}"
            if _BAD_SIZE in error.reason:
                hint = (
                    "a file that was open has changed since the snapshot, and CRIU alone keeps no files: put it back"
                    f" as it was, or use a backend that keeps files ({hint})"
                )
            raise BackendFailed("criu", operation, error.reason, hint=hint) from error
        except CannotBeSaved as error:
            raise BackendFailed("criu", operation, str(error), hint=error.hint) from error
