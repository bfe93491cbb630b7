"""Where the state directory is: a flag wins over the environment, that over a file, a file over the default.

Only the edges (the command line and :func:`waypoint.open`) look this up; everything below is given it.
"""

from __future__ import annotations

import os.path

from waypoint.errors import UsageError

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["DEFAULT_STATE_DIR", "config_files", "find_state_dir"]

DEFAULT_STATE_DIR = "/var/lib/waypoint"
_FILE_HINT = 'correct or remove the file; it may say {"state_dir": "/path"}'


def config_files(environ: Mapping[str, str]) -> list[str]:
    """Where a configuration file is looked for; the first that exists is the one used."""
    if explicit := environ.get("WAYPOINT_CONFIG"):
        return [explicit]
    xdg = environ.get("XDG_CONFIG_HOME")
    personal = f"{xdg}/waypoint" if xdg else f"{environ.get('HOME', '/root')}/.waypoint"
    return [f"{personal}/config.json", "/etc/waypoint/config.json"]


def find_state_dir(flag: str | None, *, environ: Mapping[str, str], files: Sequence[str]) -> str:
    """The state directory in force. Raises UsageError on a file or a path that cannot serve."""
    stored = _read_first(files, required="WAYPOINT_CONFIG" in environ)
    chosen = flag or environ.get("WAYPOINT_STATE_DIR") or stored.get("state_dir") or DEFAULT_STATE_DIR
    if not chosen.startswith("/"):
        raise UsageError(
            f"state directory {chosen!r} is not an absolute path", hint=f"write for example /{chosen}"
        )
    chosen = os.path.realpath(chosen)  # one directory, one name: branches are found by it
    # CRIU runs with a small file system of its own over /run, see native/init/enter.c.
    is_in_run = chosen == "/run" or chosen.startswith("/run/")
    if is_in_run or any(character in chosen for character in ":,\\\n"):
        raise UsageError(
            f"state directory {chosen!r} must not be below /run or contain ':', ',' or '\\'",
            hint=f"choose another place, such as {DEFAULT_STATE_DIR}",
        )
    return chosen


def _read_first(files: Sequence[str], *, required: bool) -> dict[str, str]:
    path = next((path for path in files if os.path.exists(path)), None)
    if path is None:
        if required:
            raise UsageError(
                f"configuration file {files[0]} does not exist",
                hint="WAYPOINT_CONFIG names it: correct or unset it",
            )
        return {}
    import json

    try:
        with open(path) as file:
            stored = json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read configuration file {path}: {error}", hint=_FILE_HINT) from error
    if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
        raise UsageError(f"configuration file {path} must be a JSON object of strings", hint=_FILE_HINT)
    unknown = sorted(set(stored) - {"state_dir"})
    if unknown:
        raise UsageError(
            f"configuration file {path}: unknown key {unknown[0]!r}", hint="the only known key is state_dir"
        )
    return stored
