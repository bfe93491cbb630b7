"""Waypoint: live terminal sessions that can be checkpointed, restored and branched.

Start with ``waypoint.open()``; ``docs/architecture.md`` explains how it works. Names are imported when they are
first used, so that ``import waypoint`` costs next to nothing.
"""

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from waypoint.errors import WaypointError
    from waypoint.model import CheckpointRecord, CopyResult
    from waypoint.session.commands.exec import CommandResult
    from waypoint.session.session import Branch, Session
    from waypoint.session.waypoint import Waypoint, open

__all__ = [
    "Branch",
    "CheckpointRecord",
    "CommandResult",
    "CopyResult",
    "Session",
    "Waypoint",
    "WaypointError",
    "__version__",
    "open",
]

__version__ = "0.1.0"

_MODULES = {
    "Branch": "session.session",
    "CheckpointRecord": "model",
    "CommandResult": "session.commands.exec",
    "CopyResult": "model",
    "Session": "session.session",
    "Waypoint": "session.waypoint",
    "WaypointError": "errors",
    "open": "session.waypoint",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'waypoint' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"waypoint.{_MODULES[name]}"), name)
