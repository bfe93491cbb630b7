"""Report failures of the tools that a backend uses as the backend's own."""

from collections.abc import Iterator
from contextlib import contextmanager

from statefork.errors import BackendFailed, StateForkError
from waypoint.errors import Broken, ToolFailed, WaypointError

__all__ = ["explained"]


@contextmanager
def explained(backend: str, operation: str) -> Iterator[None]:
    """Report any failure of the block as BackendFailed, with the tool's own reason."""
    try:
        yield
    except StateForkError:
        raise
    except ToolFailed as error:
        said = error.stderr.strip().splitlines()
        raise BackendFailed(backend, operation, said[-1] if said else str(error)) from error
    except Broken as error:  # its hint is for a session
        raise BackendFailed(backend, operation, str(error)) from error
    except WaypointError as error:
        raise BackendFailed(backend, operation, str(error), hint=error.hint) from error
    except OSError as error:
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        raise BackendFailed(backend, operation, what) from error
