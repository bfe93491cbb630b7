"""Every error names the thing concerned, has a hint and a stable code, and changes nothing."""

import json
import os
import sqlite3
from pathlib import Path

import pytest

from support.command_line import Cli
from support.waiting import wait_for

# Another user on this machine. The interpreter may be in root's home, so this user may read there, unlike nobody.
NOBODY = (
    "setpriv --reuid=65534 --regid=65534 --clear-groups"
    " --inh-caps=-all,+dac_read_search --ambient-caps=+dac_read_search"
).split()


@pytest.mark.parametrize(
    "words",
    [
        ["snapshot", "nosuch"],
        ["restore", "nosuch", "c"],
        ["fork", "nosuch", "c"],
        ["list", "nosuch"],
        ["tree", "nosuch"],
        ["destroy", "nosuch:b"],
        ["cleanup", "nosuch"],
        ["cleanup", "nosuch", "--force"],
        ["exec", "nosuch", "--", "true"],
    ],
    ids=" ".join,
)
def test_an_unknown_session_is_reported_by_name(cli: Cli, words: list[str]) -> None:
    failure = cli.failure(*words)
    # other codes of exec are those of the command
    assert failure.exit_code == (125 if words[0] == "exec" else 3)
    assert (failure.code, failure.message) == ("not_found", "no session named 'nosuch'")
    assert "waypoint list" in failure.hint


@pytest.mark.parametrize("name", ["../x", "a:b:c", "", "x" * 65, "-x", "é"])
def test_an_invalid_name_is_refused_before_anything_is_made(cli: Cli, shell: str, name: str) -> None:
    before = everything_in(cli.state_dir)
    for words in (
        ["snapshot", "--", name],
        ["snapshot", f"{shell}:{name}"],
        ["snapshot", shell, "--", name],
        ["restore", shell, "--", name],
        ["fork", shell, "--", name],
        ["fork", shell, "main", f"--id={name}"],
        ["destroy", f"{shell}:{name}"],
        ["cleanup", "--", name],
        ["init", f"--name={name}"],
    ):
        if words[0] == "snapshot" and words[-1] == "":
            continue  # an empty name is no error: a default name is chosen
        failure = cli.failure(*words)
        assert (failure.exit_code, failure.code) == (2, "invalid_name"), words
    assert everything_in(cli.state_dir) == before


def everything_in(state_dir: Path) -> set[Path]:
    return {path for part in ("locks", "sessions", "work", "pool") for path in (state_dir / part).glob("*")}


@pytest.mark.quick
def test_an_unknown_branch_or_checkpoint_is_reported_by_name(cli: Cli, shell: str) -> None:
    for words, kind in (
        (["restore", shell, "nosuch"], "checkpoint"),
        (["restore", f"{shell}:nosuch", "c"], "branch"),
        (["snapshot", f"{shell}:nosuch"], "branch"),
        (["destroy", f"{shell}:nosuch"], "branch"),
        (["fork", shell, "nosuch"], "checkpoint or branch"),
    ):
        failure = cli.failure(*words)
        assert (failure.exit_code, failure.message) == (3, f"no {kind} named 'nosuch'"), words
        assert f"waypoint list {shell}" in failure.hint


def test_a_taken_name_is_refused(cli: Cli, workspace: Path) -> None:
    cli("init", os.fspath(workspace), "--name", "taken")
    cli("snapshot", "taken", "point")
    for words, what in (
        (["init", os.fspath(workspace), "--name", "taken"], "session 'taken'"),
        (["snapshot", "taken", "point"], "'point'"),
        (["snapshot", "taken", "main"], "'main'"),
        (["fork", "taken", "point", "--id", "point"], "'point'"),
        (["fork", "taken", "point", "--id", "main"], "'main'"),
    ):
        failure = cli.failure(*words)
        assert (failure.exit_code, failure.code) == (5, "already_exists"), words
        assert f"{what} already exists" in failure.message
        assert "another name" in failure.hint
    assert cli("list", "--quiet").count("\n") == 0
    assert cli("list", "taken", "--quiet") == "point"


def test_a_missing_base_or_directory_is_reported_by_name(cli: Cli, tmp_path: Path) -> None:
    for words, exit_code, what in (
        (["init", f"{tmp_path}/nosuch"], 3, f"no directory named '{tmp_path}/nosuch'"),
        (["init", "--base", "nosuch"], 3, "no base named 'nosuch'"),
        (["init", "--base", f"{tmp_path}/nosuch"], 3, f"no directory named '{tmp_path}/nosuch'"),
        (["init", "--base", os.fspath(tmp_path)], 2, f"{tmp_path} is not a root file system"),
        (["init", "/proc"], 2, "/proc"),
    ):
        failure = cli.failure(*words)
        assert failure.exit_code == exit_code, words
        assert what in failure.message


def test_wrong_usage_is_reported(cli: Cli, shell: str) -> None:
    for words, what in (
        (["fork", shell, "main", "--n", "2", "--id", "x"], "--id"),
        (["fork", shell, "main", "--n", "0"], "0 branches"),
        (["fork", shell, "main", "--n", "1000"], "1000 branches"),
        (["destroy", shell], "SESSION:BRANCH"),
        (["destroy", f"{shell}:main"], "'main' cannot be destroyed"),
        (["pool", "resize", "much"], "'much'"),
        (["list", "--state-dir", "relative"], "'relative' is not an absolute path"),
        (["list", "--state-dir", "/run/waypoint"], "/run"),
    ):
        failure = cli.failure(*words)
        assert (failure.exit_code, failure.code) == (2, "usage"), words
        assert what in failure.message
    assert cli.failure("exec", shell).exit_code == 125
    for words in (["nosuch"], ["snapshot"], ["exec", shell, "--timeout", "soon", "--", "true"]):
        ended = cli.run(*words)
        assert ended.exit_code == 2
        assert ended.err.startswith("usage: waypoint")
    assert cli("list", shell, "--quiet") == ""


def test_most_verbs_need_root(cli: Cli, shell: str) -> None:
    for words in (["list"], ["init"], ["snapshot", shell], ["setup"], ["pool", "unmount"]):
        failure = cli.failure(*words, prefix=NOBODY)
        assert (failure.exit_code, failure.code) == (4, "not_permitted"), words
        assert "needs root" in failure.message
        assert "sudo" in failure.hint
    assert cli.run("version", prefix=NOBODY).exit_code == 0
    assert cli.run("doctor", prefix=NOBODY).exit_code == 7


def test_a_state_directory_without_setup_is_reported_with_the_remedy(cli: Cli, tmp_path: Path) -> None:
    for words in (["list"], ["init"], ["pool", "unmount"]):
        failure = cli.failure(*words, "--state-dir", f"{tmp_path}/fresh")
        assert (failure.exit_code, failure.code) == (7, "pool_not_ready")
        assert f"{tmp_path}/fresh" in failure.message
        assert f"waypoint setup --state-dir {tmp_path}/fresh" in failure.hint
    assert not (tmp_path / "fresh").exists()


def test_a_damaged_file_of_setup_is_reported_by_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text("{")
    failure = cli.failure("init", "--state-dir", os.fspath(tmp_path))
    assert (failure.exit_code, failure.code) == (7, "ability_missing")
    assert "host.json" in failure.message


def test_a_missing_criu_is_reported_with_the_remedy(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(
        json.dumps({"criu_command": [f"{tmp_path}/criu"], "criu_version": "4.2"})
    )
    failure = cli.failure("init", "--state-dir", os.fspath(tmp_path))
    assert (failure.exit_code, failure.code) == (7, "ability_missing")
    assert f"{tmp_path}/criu" in failure.message
    assert "waypoint setup" in failure.hint


def test_a_catalogue_of_a_newer_version_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text("{}")
    with sqlite3.connect(tmp_path / "catalogue.db") as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    failure = cli.failure("list", "--state-dir", os.fspath(tmp_path))
    assert (failure.exit_code, failure.code) == (7, "catalogue_too_new")
    assert f"{tmp_path}/catalogue.db has schema 99" in failure.message


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"state_dir": 1}', '{"colour": "red"}', None], ids=lambda text: str(text)
)
def test_a_broken_configuration_file_is_reported_by_name(cli: Cli, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    failure = cli.failure("list", env={"WAYPOINT_CONFIG": os.fspath(file), "WAYPOINT_STATE_DIR": ""})
    assert (failure.exit_code, failure.code) == (2, "usage")
    assert os.fspath(file) in failure.message


def test_a_killed_branch_is_reported_and_can_be_restored(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=kept")
    cli("snapshot", shell, "before")
    (branch,) = cli.document("list", shell)["branches"]
    os.kill(branch["pid"], 9)
    wait_for(lambda: cli.document("list", shell)["branches"][0]["status"] == "dead")
    failure = cli.failure("exec", shell, "--", "true")
    assert (failure.exit_code, failure.code) == (125, "broken")
    assert f"branch 'main' of session {shell}" in failure.message
    assert "waypoint restore" in failure.hint
    snapshot = cli.failure("snapshot", shell)
    assert (snapshot.exit_code, snapshot.code) == (6, "broken")
    (gone,) = cli.document("list", shell)["forks"]
    assert (gone["status"], gone["pid"], gone["start_time"], gone["socket_path"]) == (
        "dead",
        None,
        None,
        None,
    )
    assert "main checkpoint=before status=dead pid=- socket=-" in cli("list", shell)
    cli("restore", shell, "before")
    assert cli("exec", shell, "--", "echo $x") == "kept"


def test_an_error_of_the_system_is_one_line(cli: Cli) -> None:
    failure = cli.failure("setup", "--state-dir", "/etc/passwd")
    assert (failure.exit_code, failure.code) == (1, "failure")
    assert "/etc/passwd" in failure.message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restor", "demo", "ready"], "there is no waypoint restor; do you mean restore?"),
        (["base", "imprt", "x"], "there is no waypoint base imprt; do you mean import?"),
        (["xyzzy"], "there is no waypoint xyzzy\n"),
    ],
)
def test_a_mistyped_verb_gets_a_suggestion(cli: Cli, words: list[str], said: str) -> None:
    ended = cli.run(*words)
    assert (ended.exit_code, ended.out) == (2, b"")
    assert said in ended.err
    assert "--help lists" in ended.err
