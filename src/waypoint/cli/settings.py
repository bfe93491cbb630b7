"""Settings as the command line shows them."""

import argparse

__all__ = ["older_key_notes", "settings_document"]


def older_key_notes(options: argparse.Namespace) -> list[str]:
    """A note for each older key that is set and has no effect."""
    return [setting.note for setting in options.settings.values() if setting.note]


def settings_document(options: argparse.Namespace) -> dict[str, object]:
    """Every key with its value and source; with a note if it has no effect."""
    return {
        name: {
            "value": list(setting.value) if isinstance(setting.value, tuple) else setting.value,
            "source": setting.source,
            **({"note": setting.reason} if setting.reason else {}),
        }
        for name, setting in options.settings.items()
    }
