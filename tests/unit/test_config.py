"""Which state directory is in force, and what is refused."""

import json
from pathlib import Path

import pytest

from waypoint.config import DEFAULT_STATE_DIR, config_files, find_state_dir
from waypoint.errors import UsageError


def test_a_flag_wins_over_the_environment_and_that_over_a_file(tmp_path: Path) -> None:
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


def test_files_are_looked_for_where_users_keep_them() -> None:
    assert config_files({"WAYPOINT_CONFIG": "/x.json"}) == ["/x.json"]
    assert config_files({"XDG_CONFIG_HOME": "/c"})[0] == "/c/waypoint/config.json"
    assert config_files({"HOME": "/h"})[0] == "/h/.waypoint/config.json"


@pytest.mark.parametrize("text", ["{", "[]", '{"state_dir": 5}', '{"unknown": "x"}'])
def test_a_file_that_is_not_understood_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        find_state_dir(None, environ={}, files=[str(file)])


def test_a_file_asked_for_by_name_must_exist(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    with pytest.raises(UsageError, match="does not exist"):
        find_state_dir(None, environ={"WAYPOINT_CONFIG": missing}, files=[missing])


@pytest.mark.parametrize(
    "path", ["relative/dir", "/run/waypoint", "/a:b", "/a,b", "/var/run/x", "//run/x", "/tmp/../run/x"]
)
def test_a_state_directory_that_cannot_serve_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="state directory"):
        find_state_dir(path, environ={}, files=[])
