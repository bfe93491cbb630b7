"""Settings as the command line tells of them."""

import argparse

__all__ = ["older_key_notes", "settings_document"]


def older_key_notes(options: argparse.Namespace) -> list[str]:
    """What to tell those who have set keys of the originals that change nothing here."""
    return [setting.note for setting in options.settings.values() if setting.note]


def settings_document(options: argparse.Namespace) -> dict[str, object]:
    """Every key with its value and source; with a note if it changes nothing here."""
    return {
        name: {
            "value": list(setting.value) if isinstance(setting.value, tuple) else setting.value,
            "source": setting.source,
            **({"note": setting.reason} if setting.reason else {}),
        }
        for name, setting in options.settings.items()
    }
