"""Which settings are in force, where they come from, and which are refused."""

import json
from pathlib import Path

import pytest

from waypoint.config import (
    CHECKPOINT_LITE,
    DEFAULT_STATE_DIR,
    KEYS,
    WAYPOINT,
    config_files,
    configured_list,
    find_state_dir,
    read_config,
    read_settings,
)
from waypoint.errors import UsageError


def test_a_flag_overrides_the_environment_which_overrides_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"state_dir": "/from/file"}))
    environ = {"WAYPOINT_STATE_DIR": "/from/environ"}

    assert find_state_dir("/from/flag", environ=environ, files=[str(file)]) == "/from/flag"
    assert find_state_dir(None, environ=environ, files=[str(file)]) == "/from/environ"
    assert find_state_dir(None, environ={}, files=[str(file)]) == "/from/file"
    assert find_state_dir(None, environ={}, files=[str(tmp_path / "none")]) == DEFAULT_STATE_DIR


def test_only_the_first_file_found_counts(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(json.dumps({"state_dir": f"/{name}"}))
    files = [str(tmp_path / name) for name in ("none", "first", "second")]
    assert find_state_dir(None, environ={}, files=files) == "/first"


def test_the_file_is_searched_for_where_users_keep_it() -> None:
    assert config_files({"WAYPOINT_CONFIG": "/x.json"}) == ["/x.json"]
    assert config_files({"XDG_CONFIG_HOME": "/c"})[0] == "/c/waypoint/config.json"
    assert config_files({"HOME": "/h"})[0] == "/h/.waypoint/config.json"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"state_dir": 5}',
        '{"state_dir": []}',
        '{"unknown": "x"}',
        '{"hide": "x"}',
        '{"show": [5]}',
        '{"phase_stats": "true"}',
        '{"sessions_dir": true}',
    ],
)
def test_an_invalid_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        find_state_dir(None, environ={}, files=[str(file)])


def test_lists_are_read_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"state_dir": "/from/file", "hide": ["~/x", "/y"]}))
    stored = read_config(environ={}, files=[str(file)])
    assert configured_list(stored, "hide") == ["~/x", "/y"]
    assert configured_list(stored, "show") == []


def test_a_file_named_by_the_environment_must_exist(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    with pytest.raises(UsageError, match="does not exist"):
        find_state_dir(None, environ={"WAYPOINT_CONFIG": missing}, files=[missing])


@pytest.mark.parametrize(
    "path", ["relative/dir", "/run/waypoint", "/a:b", "/a,b", "/var/run/x", "//run/x", "/tmp/../run/x"]
)
def test_an_unusable_state_directory_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="state directory"):
        find_state_dir(path, environ={}, files=[])


# -- the older keys and environment variables


def test_the_file_is_searched_for_in_four_directories_in_order() -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c"}
    assert config_files(environ, executable="/opt/bin/waypoint") == [
        "/opt/bin/config.json",
        "/c/waypoint/config.json",
        "/etc/waypoint/config.json",
    ]
    assert config_files({"HOME": "/h"}, program=CHECKPOINT_LITE, executable="/opt/bin/x") == [
        "/opt/bin/config.json",
        "/h/.checkpoint-lite/config.json",
        "/etc/checkpoint-lite/config.json",
    ]
    explicit = {"WAYPOINT_CONFIG": "/w.json", "CHECKPOINT_CONFIG": "/c.json"}
    assert config_files(explicit, executable="/opt/bin/waypoint") == ["/w.json"]
    assert config_files(explicit, program=CHECKPOINT_LITE) == ["/c.json"]


def test_each_program_has_its_prefix_and_checkpoint_lite_falls_back_to_waypoints() -> None:
    environ = {"CHECKPOINT_SESSIONS_DIR": "/old", "WAYPOINT_SESSIONS_DIR": "/new"}
    assert find_state_dir(None, environ=environ, files=[], program=CHECKPOINT_LITE) == "/old"
    assert find_state_dir(None, environ=environ, files=[], program=WAYPOINT) == "/new"
    ambient = {"CHECKPOINT_SESSIONS_DIR": "/own", "WAYPOINT_STATE_DIR": "/ambient"}
    assert find_state_dir(None, environ=ambient, files=[], program=CHECKPOINT_LITE) == "/own"
    del environ["CHECKPOINT_SESSIONS_DIR"]
    assert find_state_dir(None, environ=environ, files=[], program=CHECKPOINT_LITE) == "/new"
    assert find_state_dir(None, environ={"CHECKPOINT_SESSIONS_DIR": "/x"}, files=[]) == DEFAULT_STATE_DIR


def test_the_older_key_of_the_state_directory_counts_if_ours_is_not_set(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"state_dir": "/file", "sessions_dir": "/older-file"}))
    assert find_state_dir(None, environ={}, files=[str(file)]) == "/file"
    assert find_state_dir(None, environ={"WAYPOINT_SESSIONS_DIR": "/env"}, files=[str(file)]) == "/env"
    both = {"WAYPOINT_SESSIONS_DIR": "/env", "WAYPOINT_STATE_DIR": "/ours"}
    assert find_state_dir(None, environ=both, files=[]) == "/ours"
    settings = read_settings(None, environ=both, files=[])
    assert settings["sessions_dir"].note == (
        "sessions_dir (env:WAYPOINT_SESSIONS_DIR) changes nothing here:"
        " state_dir (env:WAYPOINT_STATE_DIR) is set too, and counts"
    )
    with pytest.raises(UsageError, match=r"\(sessions_dir, env:WAYPOINT_SESSIONS_DIR\)"):
        find_state_dir(None, environ={"WAYPOINT_SESSIONS_DIR": "/a:b"}, files=[])


def test_every_setting_reports_its_source(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"phase_stats": True, "tmpfs_images": True, "bash_init_src": "./bash_init"}))
    environ = {"WAYPOINT_TMPFS_IMAGES": "F", "WAYPOINT_TMPFS_DIR": "/dev/shm/w"}
    settings = read_settings(None, environ=environ, files=[str(file)])
    assert set(settings) == {key.name for key in KEYS}
    assert {name: (setting.value, setting.source) for name, setting in settings.items()} == {
        "state_dir": (DEFAULT_STATE_DIR, "default"),
        "sessions_dir": (DEFAULT_STATE_DIR, "default"),
        "session_info_dir": (None, "default"),
        "preserve_session_on_cleanup": (False, "default"),
        "phase_stats": (True, f"config:{file}"),
        "tmpfs_images": (False, "env:WAYPOINT_TMPFS_IMAGES"),
        "tmpfs_images_dir": ("/dev/shm/w", "env:WAYPOINT_TMPFS_DIR"),
        "bash_init_src": ("./bash_init", f"config:{file}"),
        "hide": ((), "default"),
        "show": ((), "default"),
    }
    assert read_settings("/flag", environ={}, files=[])["state_dir"].source == "flag"
    # A note goes to users who set a key that changes nothing, but not if they switched it off.
    assert {name for name, setting in settings.items() if setting.note} == {
        "tmpfs_images_dir",
        "bash_init_src",
    }


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("t", True), ("TRUE", True), ("0", False), ("False", False)]
)
def test_flags_may_be_written_in_the_older_forms(text: str, value: bool) -> None:
    settings = read_settings(None, environ={"WAYPOINT_PHASE_STATS": text}, files=[])
    assert settings["phase_stats"].value is value


def test_an_invalid_flag_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="WAYPOINT_PHASE_STATS='yes' is neither true nor false"):
        read_settings(None, environ={"WAYPOINT_PHASE_STATS": "yes"}, files=[])
