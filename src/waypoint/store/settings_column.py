"""The settings of a session as a column of the catalogue."""

import dataclasses
import json
from typing import Any

from waypoint.model import (
    Allowed,
    Limits,
    Network,
    NetworkMode,
    Secret,
    SessionSettings,
    Volume,
    Walls,
)
from waypoint.store.live import LiveCatalogue

__all__ = ["decode_settings", "encode_settings", "session_settings"]


def encode_settings(settings: SessionSettings) -> str:
    return json.dumps(dataclasses.asdict(settings))


def decode_settings(text: str) -> SessionSettings:
    """The settings as they were encoded; what an older version did not know yet has its default."""
    fields = json.loads(text)
    size = fields.pop("size", None)
    return SessionSettings(
        size=None if size is None else (size[0], size[1]),
        network=_network(fields.pop("network", {})),
        limits=Limits(**fields.pop("limits", {})),
        walls=Walls(**fields.pop("walls", {})),
        volumes=tuple(Volume(**volume) for volume in fields.pop("volumes", ())),
        secrets=tuple(Secret(**secret) for secret in fields.pop("secrets", ())),
        hidden=tuple(fields.pop("hidden", ())),
        shown=tuple(fields.pop("shown", ())),
        **fields,
    )


def _network(fields: dict[str, Any]) -> Network:
    allowed = fields.get("allowed")
    return Network(
        mode=NetworkMode(fields.get("mode", NetworkMode.ISOLATED)),
        allowed=None
        if allowed is None
        else tuple(Allowed(**{**one, "addresses": tuple(one["addresses"])}) for one in allowed),
    )


def session_settings(catalogue: LiveCatalogue, session_id: str) -> SessionSettings:
    """What was asked for when the session was created."""
    return decode_settings(catalogue.settings_text(session_id))
