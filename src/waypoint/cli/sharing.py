"""What a session shares with the host, and which host paths are hidden from it: as notes and as JSON."""

import os
from collections.abc import Iterable

from waypoint.model import SessionSettings

__all__ = ["shared_document", "sharing_notes"]

NAMED_MAX = 5


def sharing_notes(settings: SessionSettings) -> list[str]:
    """What a person should know about a new session. Hidden paths that do not exist are left out."""
    notes = [
        f"{volume.path} is {volume.source} of the host{', read-only' if volume.read_only else ''}:"
        " shared by all branches, in no checkpoint"
        for volume in settings.volumes
    ]
    if hidden := _existing(settings.hidden):
        more = f" and {len(hidden) - NAMED_MAX} more" if len(hidden) > NAMED_MAX else ""
        notes.append(
            f"hidden from the session: {_shortened(hidden[:NAMED_MAX])}{more} (--show PATH shows it)"
        )
    if settings.shown:
        notes.append(f"hidden by default, but not from this session: {_shortened(settings.shown)}")
    return notes


def shared_document(settings: SessionSettings) -> dict[str, object]:
    return {
        "volumes": [
            {
                "source": volume.source,
                "path": volume.path,
                "read_only": volume.read_only,
                "branchable": False,
            }
            for volume in settings.volumes
        ],
        "secrets": [secret.name for secret in settings.secrets],
        "hidden": _existing(settings.hidden),
        "shown": list(settings.shown),
    }


def _existing(paths: Iterable[str]) -> list[str]:
    """Those that exist, the ones in the caller's home first."""
    home = os.path.expanduser("~")
    return sorted(filter(os.path.lexists, paths), key=lambda path: (not path.startswith(f"{home}/"), path))


def _shortened(paths: Iterable[str]) -> str:
    home = os.path.expanduser("~")
    return " ".join(f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path for path in paths)
