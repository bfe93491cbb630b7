"""Settings: flags win over the environment, the environment over a file, a file over the defaults.

Only the edges (the command line and :func:`waypoint.open`) load settings; everything below gets them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from waypoint.errors import UsageError

__all__ = ["Settings", "config_files", "load_settings"]

DEFAULT_STATE_DIR = Path("/var/lib/waypoint")
_FILE_HINT = 'correct or remove the file; it may say {"state_dir": "/path"}'


class Settings(NamedTuple):
    state_dir: Path = DEFAULT_STATE_DIR


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """Where a configuration file is looked for; the first that exists is the one used."""
    if explicit := environ.get("WAYPOINT_CONFIG"):
        return [Path(explicit)]
    xdg = environ.get("XDG_CONFIG_HOME")
    home = environ.get("HOME", "/root")
    personal = Path(xdg) / "waypoint" if xdg else Path(home) / ".waypoint"
    return [personal / "config.json", Path("/etc/waypoint/config.json")]


def load_settings(
    *, state_dir: str | Path | None, environ: Mapping[str, str], files: Sequence[Path]
) -> Settings:
    """The settings in force. Raises UsageError on a file that is not understood or a path that cannot serve."""
    stored = _read_first(files, required="WAYPOINT_CONFIG" in environ)
    chosen = state_dir or environ.get("WAYPOINT_STATE_DIR") or stored.get("state_dir") or DEFAULT_STATE_DIR
    path = Path(chosen)
    if not path.is_absolute():
        raise UsageError(
            f"state directory {str(path)!r} is not an absolute path", hint=f"write for example /{path}"
        )
    # CRIU runs with a small file system of its own over /run, see native/init/enter.c.
    if path.is_relative_to("/run") or any(character in str(path) for character in ":,\\\n"):
        raise UsageError(
            f"state directory {str(path)!r} must not be below /run or contain ':', ',' or '\\'",
            hint="choose another place, such as /var/lib/waypoint",
        )
    return Settings(state_dir=path)


def _read_first(files: Sequence[Path], *, required: bool) -> dict[str, str]:
    for path in files:
        try:
            stored = json.loads(path.read_text())
        except FileNotFoundError:
            if required:
                raise UsageError(
                    f"configuration file {path} does not exist",
                    hint="WAYPOINT_CONFIG names it: correct or unset it",
                ) from None
            continue
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read configuration file {path}: {error}", hint=_FILE_HINT) from error
        if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
            raise UsageError(f"configuration file {path} must be a JSON object of strings", hint=_FILE_HINT)
        unknown = sorted(set(stored) - {"state_dir"})
        if unknown:
            raise UsageError(
                f"configuration file {path}: unknown key {unknown[0]!r}",
                hint="the only known key is state_dir",
            )
        return stored
    return {}
