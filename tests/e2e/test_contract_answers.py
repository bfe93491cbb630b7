"""What scripts for the originals read: documents, lists, statistics, settings, and who holds a session."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.command_line import Cli
from support.leaks import sweep
from support.waiting import wait_for

LITE = Path(sys.executable).with_name("checkpoint-lite")


def lite(cli: Cli, *words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [LITE, *words],
        env={**cli.env, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# -- documents


CHECKPOINT = {
    *("id", "parent_id", "layer_ids", "pid", "original_dir", "session_id", "created_from_fork_id"),
    *("created_at", "status"),
    *("parent", "branch", "kind", "memory_bytes"),  # our own fields
}
FORK = {
    *("id", "session_id", "base_checkpoint_id", "layer_ids", "original_dir", "root_dir", "upper_dir"),
    *("work_dir", "mount_point", "socket_path", "canonical_socket", "pid", "start_time", "created_at"),
    "restore_duration",
    *("status", "restore_breakdown"),
}


def test_documents_have_the_fields_of_generation_c_and_our_own(cli: Cli, shell: str) -> None:
    cli("checkpoint", shell, "first")
    cli("fork", shell, "first", "--id", "side")
    cli("snapshot", shell, "side", "second")

    whole = json.loads(cli("list", shell, "--json"))
    assert whole["session_id"] == shell
    assert set(whole["checkpoints"][0]) == CHECKPOINT
    second = whole["checkpoints"][1]
    assert (second["parent_id"], second["layer_ids"]) == ("first", ["second", "first"])
    assert (second["created_from_fork_id"], second["status"]) == ("side", "ready")
    assert [set(fork) for fork in whole["forks"]] == [FORK, FORK]
    main, side = whole["forks"]
    assert (main["id"], side["id"], side["base_checkpoint_id"]) == ("main", "side", "second")
    assert set(side["restore_breakdown"]) >= {"total_ms", "mount_ms", "criu_wall_ms", "sock_wait_ms"}
    assert side["socket_path"] == f"/proc/{side['pid']}/root/.waypoint/sock"
    assert os.path.exists(side["socket_path"])
    assert [branch["id"] for branch in whole["branches"]] == ["main", "side"]  # our own field, unchanged

    session = json.loads(cli("info", shell))
    assert session["type"] == "session"
    assert session["session"]["session_id"] == shell
    assert session["session"]["shell_pid"] == main["pid"]
    assert session["session"]["current_parent"] == "first"
    for fork in session["forks"]:
        assert (fork["available"], fork["unavailable_reason"]) == (True, None)
        assert os.path.samefile(fork["host_root"], f"{fork['directory']}/.")
        assert fork["host_pid_start_time"] > 0

    checkpoint = json.loads(cli("info", shell, "second"))
    assert (checkpoint["type"], checkpoint["session_id"], checkpoint["checkpoint_id"]) == (
        "checkpoint",
        shell,
        "second",
    )
    more = {"files_bytes", "snapshot_breakdown", "timestamp", "parent_list"}
    assert set(checkpoint["metadata"]) == CHECKPOINT | more
    assert checkpoint["metadata"]["parent_list"] == ["first"]
    breakdown = checkpoint["metadata"]["snapshot_breakdown"]
    assert breakdown["total_ms"] > breakdown["dump_ms"] > breakdown["criu_dump"]["frozen_ms"] > 0
    assert cli.failure("info", shell, "nosuch").exit_code == 3
    assert cli.failure("info", "nosuch").exit_code == 3


def test_info_describes_the_system_and_the_source_of_each_setting(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"tmpfs_images": True, "phase_stats": True}))
    ended = cli.run("info", env={"WAYPOINT_CONFIG": os.fspath(file), "WAYPOINT_PHASE_STATS": "0"})
    document = json.loads(ended.out)
    assert document["type"] == "system"
    config = document["config"]
    assert config["phase_stats"] == {"value": False, "source": "env:WAYPOINT_PHASE_STATS"}
    assert config["tmpfs_images"]["source"] == f"config:{file}"
    assert "pool" in config["tmpfs_images"]["note"]
    assert config["state_dir"] == {"value": os.fspath(cli.state_dir), "source": "env:WAYPOINT_STATE_DIR"}
    assert config["preserve_session_on_cleanup"] == {"value": False, "source": "default"}
    for name in ("criu", "buildah"):
        assert set(document["dependencies"][name]) == {"available", "path", "version", "error"}
    assert document["dependencies"]["criu"]["available"] is True
    overlay = document["dependencies"]["overlayfs"]
    assert (overlay["available"], overlay["kernel_version"]) == (True, os.uname().release)


def test_phase_statistics_add_one_line(cli: Cli, shell: str) -> None:
    asked = {"WAYPOINT_PHASE_STATS": "true"}
    first, second = cli.run("checkpoint", shell, "c", env=asked).lines
    assert first == "Checkpoint 'c' created successfully"
    assert re.fullmatch(r"phases total_ms=[\d.]+( \w+_ms=[\d.]+)* dump_ms=[\d.]+( \w+_ms=[\d.]+)*", second)
    (line,) = cli.run("fork", shell, "c", "--id", "f", env=asked).lines
    assert re.match(
        r"f pid=\d+ socket=\S+ duration=[\d.]+ms mount_ms=[\d.]+ criu_wall_ms=[\d.]+ sockwait_ms=[\d.]+", line
    )
    lines = cli.run("snapshot", shell, "f", "d", env=asked).lines
    assert lines[0] == "Fork 'f' snapshotted as checkpoint 'd'"
    assert lines[1].startswith("phases total_ms=")


# -- settings


def test_an_invalid_configuration_is_reported_by_name(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"sesions_dir": "/x"}')
    failure = cli.failure("list", env={"WAYPOINT_CONFIG": os.fspath(file)})
    assert (failure.exit_code, failure.message) == (
        2,
        f"configuration file {file}: unknown key 'sesions_dir'",
    )
    older = lite(cli, "list", env={"CHECKPOINT_CONFIG": os.fspath(file)})
    assert (older.returncode, older.stdout) == (1, f"Error: {failure.message}\n")


def test_init_reports_keys_that_change_nothing(cli: Cli, workspace: Path) -> None:
    set_by_habit = {"WAYPOINT_SESSION_INFO_DIR": "/tmp/info", "WAYPOINT_TMPFS_IMAGES": "true"}
    made = cli.run("init", os.fspath(workspace), "--quiet", env=set_by_habit)
    assert (made.exit_code, made.err) == (0, "")
    made = cli.run("init", os.fspath(workspace), env=set_by_habit)
    for variable in set_by_habit:
        assert re.search(rf"^waypoint: \w+ \(env:{variable}\) changes nothing here: ", made.err, re.MULTILINE)
    session = made.lines[1].rpartition(" ")[2]
    assert cli.run("exec", session, "--", "true", env=set_by_habit).err == ""


def test_the_first_command_sets_up_a_directory_named_only_by_the_older_key(cli: Cli) -> None:
    elsewhere = Path(f"/var/tmp/waypoint-older-{os.getpid()}")
    env = {"CHECKPOINT_SESSIONS_DIR": os.fspath(elsewhere), "WAYPOINT_STATE_DIR": ""}
    try:
        first = lite(cli, "list", env=env)
        assert (first.returncode, first.stdout) == (0, "No sessions found\n")
        assert "setting it up" in first.stderr
        again = lite(cli, "list", env=env)
        assert (again.stdout, again.stderr) == ("No sessions found\n", "")
        settings = json.loads(lite(cli, "info", env=env).stdout)["config"]
        assert settings["state_dir"]["value"] == os.fspath(elsewhere)
        assert settings["sessions_dir"]["source"] == "env:CHECKPOINT_SESSIONS_DIR"
        # The prefix of another program: waypoint ignores it.
        assert (
            "setting it up"
            not in cli.run("list", env={**env, "WAYPOINT_STATE_DIR": os.fspath(cli.state_dir)}).err
        )
    finally:
        sweep(elsewhere)
        shutil.rmtree(elsewhere)


# -- a session that cannot be removed


@contextmanager
def ended_after(process: "subprocess.Popen[bytes]") -> "Iterator[subprocess.Popen[bytes]]":
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_cleanup_reports_what_holds_a_session_and_what_force_does(cli: Cli, shell: str) -> None:
    directory = cli.state_dir / "sessions" / shell / "main"
    with (
        ended_after(subprocess.Popen(["sleep", "600"], cwd=directory)) as looking,
        ended_after(cli.start("exec", shell, "--", "touch /tmp/on; sleep 600")) as running,
    ):
        wait_for((directory / "tmp/on").exists)
        failure = cli.failure("cleanup", shell)
        assert failure.exit_code == 5
        explained = failure.hint.splitlines()
        assert explained[0] == "held by:"
        assert any(
            line.startswith(f"  pid {running.pid} (") and "runs a command in branch 'main'" in line
            for line in explained
        )
        assert (
            f"  pid {looking.pid} (sleep 600) has its working directory at {directory.resolve()}" in explained
        )
        assert f"  {directory.resolve()} (branch 'main')" in explained
        assert any(line.startswith("--force ends the commands that run") for line in explained)
        assert explained[-1] == f"Try: sudo waypoint cleanup {shell} --force"

        older = lite(cli, "cleanup", shell)
        assert older.returncode == 1
        assert older.stdout.startswith("Error: ")
        assert older.stdout.splitlines()[-1] == explained[-1]

        forced = cli.run("cleanup", shell, "--force")
        assert forced.text == f"Session '{shell}' cleaned up successfully\n"
        assert forced.err.splitlines()[0] == "waypoint: ending branches: processes, mounts, files"
        assert looking.poll() is None
        assert running.wait(60) == 125


# -- the general rules of the originals, and where ours stay


def test_init_and_build_print_the_work_directory_and_the_shell_pid(cli: Cli, workspace: Path) -> None:
    said = cli.run("init", os.fspath(workspace), "--shell", "--work-dir").lines
    session = said[1].removeprefix("Session ID: ")
    work = f"{cli.state_dir}/sessions/{session}/work"
    pid = json.loads(cli("info", session))["session"]["shell_pid"]
    assert said == [
        "Environment initialized!",
        f"Session ID: {session}",
        f"Work in this directory: {work}",
        f"Shell PID: {pid} [socket: /proc/{pid}/root/.waypoint/sock]",
        "",
        "Save the session ID for future operations!",
    ]
    assert json.loads(cli("info", session))["session"]["work_overlay"] == work
    cli("cleanup", session)


def test_every_form_of_an_older_exec_ends_its_line_and_is_checked(cli: Cli, shell: str) -> None:
    for words in (
        ["exec", shell, "printf", "hi"],
        [shell, "printf", "hi"],
        ["exec", shell, "main", "--output-limit", "100", "--", "printf hi"],
    ):
        assert lite(cli, *words).stdout == "hi\n"
        bad = lite(cli, *words[:-1], "printf hi; fi") if "--" in words else lite(cli, *words, ";", "fi")
        assert (bad.returncode, bad.stdout) == (2, "")
        assert "command syntax error" in bad.stderr
    # in the words of our own command line
    assert cli.run("exec", shell, "--output-limit", "100", "--", "printf hi").text == "hi"


def test_usage_versions_and_unknown_words_are_as_in_the_originals(cli: Cli, shell: str) -> None:
    ours, theirs = cli.run(), lite(cli)
    assert (ours.exit_code, theirs.returncode) == (1, 1)
    for said in (ours.text, theirs.stdout):
        assert said.startswith("usage: ")
        assert re.fullmatch(r"Version: v[\d.]+, DAPLab", said.splitlines()[-1])
    assert re.fullmatch(r"waypoint version v[\d.]+", cli("-v"))
    assert re.fullmatch(r"checkpoint-lite version v[\d.]+\n", lite(cli, "--version").stdout)

    for words, said in (
        (["nosuch"], "Unknown command: nosuch\n"),
        (["list", "--nosuch"], "Error: unknown flag: --nosuch\n"),
        (["restore", "nosuch", "c"], "Error loading session: no session named 'nosuch'\n"),
        (["create", shell, "current"], "Error: invalid checkpoint name 'current'\n"),
        (["init", ""], "Error: no directory named ''\n"),
        (["create", shell, ""], "Error: invalid checkpoint name ''\n"),
        (["create", shell, "c", "x"], "Error: invalid PID 'x'\n"),
        (["list", shell, "extra"], "Error: too many arguments: extra\n"),
        (["exec", shell], "Error executing command: no command\n"),
        (
            ["exec", shell, "no such", "--", "true"],
            "Error executing command: invalid branch name 'no such'\n",
        ),
        (["fork", shell, "nosuch"], "Error creating fork: no checkpoint or branch named 'nosuch'\n"),
        (["cleanup", "nosuch"], "Error loading session: no session named 'nosuch'\n"),
        (["info", "nosuch"], ""),  # printed on standard error, like every error of info, build and cp
    ):
        ended = lite(cli, *words)
        assert (ended.returncode, ended.stdout) == (1, said)
    late = cli.run("exec", shell, "main", "--timeout", "0.2", "--", "sleep 60")
    assert (late.exit_code, late.err.splitlines()[0]) == (124, "Error: command timed out")
    assert cli.run("nosuch").exit_code == 2  # the same words, reported as by our own command line
    assert cli.run("restore", "nosuch", "c").exit_code == 3
