"""Which state directory is in force, and what is refused."""

import json
from pathlib import Path

import pytest

from waypoint.config import DEFAULT_STATE_DIR, config_files, load_settings
from waypoint.errors import UsageError


def test_a_flag_wins_over_the_environment_and_that_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"state_dir": "/from/file"}))
    environ = {"WAYPOINT_STATE_DIR": "/from/environ"}

    def chosen(flag: str | None, environ: dict[str, str], files: list[Path]) -> Path:
        return load_settings(state_dir=flag, environ=environ, files=files).state_dir

    assert chosen("/from/flag", environ, [file]) == Path("/from/flag")
    assert chosen(None, environ, [file]) == Path("/from/environ")
    assert chosen(None, {}, [file]) == Path("/from/file")
    assert chosen(None, {}, [tmp_path / "none"]) == DEFAULT_STATE_DIR


def test_only_the_first_file_found_counts(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(json.dumps({"state_dir": f"/{name}"}))
    files = [tmp_path / "none", tmp_path / "first", tmp_path / "second"]
    assert load_settings(state_dir=None, environ={}, files=files).state_dir == Path("/first")


def test_files_are_looked_for_where_users_keep_them() -> None:
    assert config_files({"WAYPOINT_CONFIG": "/x.json"}) == [Path("/x.json")]
    assert config_files({"XDG_CONFIG_HOME": "/c"})[0] == Path("/c/waypoint/config.json")
    assert config_files({"HOME": "/h"})[0] == Path("/h/.waypoint/config.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"state_dir": 5}', '{"unknown": "x"}'])
def test_a_file_that_is_not_understood_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        load_settings(state_dir=None, environ={}, files=[file])


def test_a_file_asked_for_by_name_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(UsageError, match="does not exist"):
        load_settings(state_dir=None, environ={"WAYPOINT_CONFIG": str(missing)}, files=[missing])


@pytest.mark.parametrize("path", ["relative/dir", "/run/waypoint", "/a:b", "/a,b"])
def test_a_state_directory_that_cannot_serve_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="state directory"):
        load_settings(state_dir=path, environ={}, files=[])
