"""Settings: a flag wins over an environment variable, a variable over a file, a file over the default.

Only the command line, :func:`waypoint.open` and the creation of sessions read them; the layers below get the
values as arguments. The program has two names, and each has its own variables and files: ``waypoint`` reads
``WAYPOINT_*``; ``checkpoint-lite`` reads ``CHECKPOINT_*``, and ``WAYPOINT_*`` where that is not set.
docs/cli.md tells users what each key means.
"""

from __future__ import annotations

import os.path

from waypoint.errors import UsageError

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "CHECKPOINT_LITE",
    "DEFAULT_STATE_DIR",
    "KEYS",
    "WAYPOINT",
    "Key",
    "Setting",
    "config_files",
    "configured_list",
    "find_state_dir",
    "read_config",
    "read_settings",
]

WAYPOINT = "waypoint"
CHECKPOINT_LITE = "checkpoint-lite"
DEFAULT_STATE_DIR = "/var/lib/waypoint"
_PREFIXES = {WAYPOINT: ("WAYPOINT_",), CHECKPOINT_LITE: ("CHECKPOINT_", "WAYPOINT_")}
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))  # the spellings that older configurations use
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_FILE_HINT = 'correct or remove the file; an example: {"state_dir": "/path"}'


class Key:
    """One key of a file, and its variable (without the prefix). ``note`` is why it has no effect, if it has none."""

    __slots__ = ("default", "kind", "name", "note", "variable")

    def __init__(
        self, name: str, kind: str, default: object, *, variable: str | None = None, note: str = ""
    ) -> None:
        self.name = name
        self.kind = kind  # "path", "flag" or "list"
        self.default = default
        self.variable = name.upper() if variable is None else variable
        self.note = note


KEYS = (
    Key("state_dir", "path", DEFAULT_STATE_DIR),
    Key("sessions_dir", "path", None),
    Key(
        "session_info_dir",
        "path",
        None,
        note="sessions are recorded in the catalogue in the state directory, not in files of their own",
    ),
    Key("preserve_session_on_cleanup", "flag", False),
    Key("phase_stats", "flag", False),
    Key(
        "tmpfs_images",
        "flag",
        False,
        note="checkpoints are written straight to the pool",
    ),
    Key(
        "tmpfs_images_dir",
        "path",
        None,
        variable="TMPFS_DIR",
        note="checkpoints are written straight to the pool",
    ),
    Key("bash_init_src", "path", None, note="the init that is put into sessions comes with the program"),
    Key("hide", "list", (), variable=""),
    Key("show", "list", (), variable=""),
)
_BY_NAME = {key.name: key for key in KEYS}


class Setting:
    """A value and where it comes from: ``default``, ``flag``, ``env:VARIABLE`` or ``config:FILE``.

    ``reason`` is why the value has no effect, if it has none.
    """

    __slots__ = ("key", "reason", "source", "value")

    def __init__(self, key: Key, value: object, source: str, *, reason: str = "") -> None:
        self.key = key
        self.value = value
        self.source = source
        self.reason = reason or key.note

    @property
    def is_default(self) -> bool:
        return self.source == "default"

    @property
    def note(self) -> str:
        """A message for a user who has set a key that has no effect; empty otherwise."""
        if not self.reason or self.is_default or self.value is False:
            return ""
        return f"{self.key.name} ({self.source}) changes nothing here: {self.reason}"


def config_files(
    environ: Mapping[str, str], *, program: str = WAYPOINT, executable: str | None = None
) -> list[str]:
    """The paths at which a configuration file may be; the first that exists is used."""
    explicit = _config_variable(environ, program)
    if explicit:
        return [environ[explicit]]
    xdg = environ.get("XDG_CONFIG_HOME")
    personal = f"{xdg}/{program}" if xdg else f"{environ.get('HOME', '/root')}/.{program}"
    program_dir = [] if executable is None else [os.path.dirname(os.path.realpath(executable))]
    return [f"{directory}/config.json" for directory in (*program_dir, personal, f"/etc/{program}")]


def find_state_dir(
    flag: str | None, *, environ: Mapping[str, str], files: Sequence[str], program: str = WAYPOINT
) -> str:
    """The state directory to use. Raises UsageError if a file or the path is not valid."""
    return str(_state_dir(flag, read_config(environ=environ, files=files), environ, files, program).value)


def _state_dir(
    flag: str | None,
    stored: Mapping[str, object],
    environ: Mapping[str, str],
    files: Sequence[str],
    program: str,
) -> Setting:
    """The setting of the state directory; the older key ``sessions_dir`` counts where ``state_dir`` is not set."""
    key, older = _BY_NAME["state_dir"], _BY_NAME["sessions_dir"]
    found = Setting(key, flag, "flag") if flag else None
    for prefix in _PREFIXES[program]:  # its own prefix wins, even with the older key
        found = found or _from_environ(key, environ, [prefix]) or _from_environ(older, environ, [prefix])
    found = found or _from_file(key, stored, files) or _from_file(older, stored, files)
    found = found or Setting(key, key.default, "default")
    chosen = str(found.value)
    if not chosen.startswith("/"):
        raise UsageError(
            f"state directory {chosen!r} is not an absolute path{_source_note(found)}",
            hint=f"write an absolute path, such as /{chosen}",
        )
    chosen = os.path.realpath(chosen)  # one path for one directory: branches are found by it
    # CRIU runs with a small file system of its own over /run, see native/init/enter.c.
    is_in_run = chosen == "/run" or chosen.startswith("/run/")
    if is_in_run or any(character in chosen for character in ":,\\\n"):
        raise UsageError(
            f"state directory {chosen!r} must not be below /run or contain ':', ',' or '\\'{_source_note(found)}",
            hint=f"choose another directory, such as {DEFAULT_STATE_DIR}",
        )
    return Setting(found.key, chosen, found.source)


def _source_note(setting: Setting) -> str:
    return "" if setting.source == "flag" else f" ({setting.key.name}, {setting.source})"


def read_settings(
    flag: str | None, *, environ: Mapping[str, str], files: Sequence[str], program: str = WAYPOINT
) -> dict[str, Setting]:
    """All settings by key, each with its source. Raises UsageError if one is not valid."""
    stored = read_config(environ=environ, files=files)
    state_dir = _state_dir(flag, stored, environ, files, program)
    settings: dict[str, Setting] = {}
    for key in KEYS:
        found = _from_environ(key, environ, _PREFIXES[program]) or _from_file(key, stored, files)
        settings[key.name] = found or Setting(key, key.default, "default")
    settings["state_dir"] = Setting(_BY_NAME["state_dir"], state_dir.value, state_dir.source)
    older = settings["sessions_dir"]
    if older.is_default:
        settings["sessions_dir"] = Setting(older.key, state_dir.value, "default")
    elif os.path.realpath(str(older.value)) != state_dir.value:
        reason = f"state_dir ({state_dir.source}) is set too, and counts"
        settings["sessions_dir"] = Setting(older.key, older.value, older.source, reason=reason)
    return settings


def configured_list(stored: Mapping[str, object], key: str) -> list[str]:
    """A list of strings from what read_config() returned; empty if the file does not have the key."""
    value = stored.get(key)
    return value if isinstance(value, list) else []


def read_config(*, environ: Mapping[str, str], files: Sequence[str]) -> dict[str, object]:
    """The keys and values of the first file that exists. Raises UsageError if it is not valid."""
    path = _used_file(files)
    if path is None:
        named = [name for name in ("WAYPOINT_CONFIG", "CHECKPOINT_CONFIG") if environ.get(name) in files]
        if named:
            raise UsageError(
                f"configuration file {files[0]} does not exist",
                hint=f"{named[0]} names it: correct or unset it",
            )
        return {}
    import json

    try:
        with open(path) as file:
            stored = json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read configuration file {path}: {error}", hint=_FILE_HINT) from error
    if not isinstance(stored, dict):
        raise UsageError(f"configuration file {path} must be a JSON object", hint=_FILE_HINT)
    for name, value in sorted(stored.items()):
        key = _BY_NAME.get(name)
        if key is None:
            raise UsageError(
                f"configuration file {path}: unknown key {name!r}",
                hint=f"known keys: {', '.join(sorted(_BY_NAME))}",
            )
        kind = {"path": "a string", "flag": "true or false", "list": "a list of strings"}[key.kind]
        if not _is_valid(key, value):
            raise UsageError(f"configuration file {path}: {name} must be {kind}", hint=_FILE_HINT)
    return stored


def _is_valid(key: Key, value: object) -> bool:
    if key.kind == "list":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, bool if key.kind == "flag" else str)


def _used_file(files: Sequence[str]) -> str | None:
    return next((path for path in files if os.path.exists(path)), None)


def _config_variable(environ: Mapping[str, str], program: str) -> str | None:
    return next((f"{p}CONFIG" for p in _PREFIXES[program] if environ.get(f"{p}CONFIG")), None)


def _from_environ(key: Key, environ: Mapping[str, str], prefixes: Sequence[str]) -> Setting | None:
    if not key.variable:
        return None
    for prefix in prefixes:
        name = prefix + key.variable
        text = environ.get(name)
        if not text:
            continue
        if key.kind != "flag":
            return Setting(key, text, f"env:{name}")
        if text in _TRUE or text in _FALSE:
            return Setting(key, text in _TRUE, f"env:{name}")
        raise UsageError(f"{name}={text!r} is neither true nor false", hint=f"unset it, or set {name}=true")
    return None


def _from_file(key: Key, stored: Mapping[str, object], files: Sequence[str]) -> Setting | None:
    value = stored.get(key.name)
    return None if value is None or value == "" else Setting(key, value, f"config:{_used_file(files)}")
