"""Waypoint: live terminal sessions that can be checkpointed, restored and branched.

``waypoint.open()`` is the way in; ``docs/architecture.md`` explains what lies beneath.
"""

from waypoint.errors import WaypointError
from waypoint.model import CheckpointRecord
from waypoint.session.command import CommandResult
from waypoint.session.session import Branch, Session
from waypoint.session.waypoint import Waypoint
from waypoint.session.waypoint import open_waypoint as open

__all__ = [
    "Branch",
    "CheckpointRecord",
    "CommandResult",
    "Session",
    "Waypoint",
    "WaypointError",
    "__version__",
    "open",
]

__version__ = "0.1.0"
