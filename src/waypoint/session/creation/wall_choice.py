"""Which walls a session may ask for, and the warning about a session without walls."""

from waypoint.errors import UsageError
from waypoint.model import SessionSettings

__all__ = ["PRIVILEGED_WARNING", "check_walls"]

PRIVILEGED_WARNING = (
    "a privileged session has no walls: root inside it is root of this host, with all capabilities and system"
    " calls, and can write /proc/sys and /sys. Run only what you would run on the host itself."
)


def check_walls(settings: SessionSettings) -> None:
    """Refuse walls that contradict each other."""
    if settings.walls.privileged and settings.network.allowed is not None:
        raise UsageError(
            "a privileged session cannot be limited to the hosts it is allowed to reach",
            hint="leave out --privileged or --allow",
        )
