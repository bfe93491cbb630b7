"""Start the background processes of a session. Most sessions need none, and nothing is imported for them."""

from waypoint.model import SessionRecord
from waypoint.session.context import Context

__all__ = ["start_background"]


def start_background(context: Context, session: SessionRecord) -> None:
    """Start the session's attendant and its port forwarder, if they are wanted and do not run."""
    if session.settings.allow_self:
        from waypoint.session.background.attendant import ensure_attendant

        ensure_attendant(context, session)
    if context.catalogue.live_ports(session.id):
        from waypoint.session.network.port_forwards import ensure_forwarder

        ensure_forwarder(context, session)
