"""The settings of a session as a column of the catalogue."""

import dataclasses
import json

from waypoint.model import SessionSettings
from waypoint.store.live import LiveCatalogue

__all__ = ["decode_settings", "encode_settings", "session_settings"]


def encode_settings(settings: SessionSettings) -> str:
    return json.dumps(dataclasses.asdict(settings))


def decode_settings(text: str) -> SessionSettings:
    fields = json.loads(text)
    size = fields.pop("size", None)
    return SessionSettings(size=None if size is None else (size[0], size[1]), **fields)


def session_settings(catalogue: LiveCatalogue, session_id: str) -> SessionSettings:
    """What was asked for when the session was made."""
    return decode_settings(catalogue.settings_text(session_id))
