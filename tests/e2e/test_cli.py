"""Every verb in its forms for people, for scripts (--quiet) and for machines (--json)."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import waypoint
from support.command_line import Cli

ID = re.compile(r"[0-9a-f]{16}")


def test_version_is_printed(cli: Cli) -> None:
    assert cli("version") == cli("--version") == f"waypoint version v{waypoint.__version__}"
    assert cli("version", "--quiet") == waypoint.__version__
    assert cli.document("version") == {"version": waypoint.__version__}


def test_setup_finds_everything_installed(cli: Cli) -> None:
    assert re.fullmatch(
        rf"Ready: CRIU [\d.]+ .*; pool .* free, at {re.escape(os.fspath(cli.state_dir))}", cli("setup")
    )
    assert cli("setup", "--quiet") == ""
    document = cli.document("setup")
    assert sorted(document) == ["criu", "pool", "state_dir"]


def test_doctor_reports_that_sessions_can_be_checkpointed(cli: Cli) -> None:
    lines = cli("doctor").splitlines()
    assert lines[-1] == "sessions can be checkpointed here"
    assert any(line.startswith("found    CRIU") for line in lines)
    assert cli("doctor", "--quiet") == ""
    document = cli.document("doctor")
    assert document["can_checkpoint"] is True
    assert all(sorted(ability) == ABILITY for ability in document["abilities"])


ABILITY = ["detail", "found", "name", "remedy", "required", "why"]


def test_pool_shows_its_usage_and_can_grow(cli: Cli) -> None:
    assert re.search(r"used, .* free of ", cli("pool"))
    assert cli("pool", "status", "--quiet") == ""
    before = cli.document("pool", "status")
    assert sorted(before) == ["free_bytes", "kind", "root", "total_bytes", "used_bytes"]
    if before["kind"] != "btrfs-loop":
        return
    larger = before["total_bytes"] + (1 << 30)
    assert "free of" in cli("pool", "resize", str(larger))
    assert cli("pool", "resize", str(larger), "--quiet") == ""
    assert cli.document("pool", "resize", str(larger))["total_bytes"] == larger


def test_the_pool_is_unmounted_only_when_unused_and_mounted_again_when_needed(cli: Cli, shell: str) -> None:
    refusal = cli.failure("pool", "unmount")
    assert (refusal.exit_code, refusal.code) == (5, "busy")
    assert f"{shell}:main" in refusal.message
    assert f"waypoint cleanup {shell}" in refusal.hint
    cli("cleanup", shell)
    assert cli("pool", "unmount") == "Pool unmounted; the next command mounts it again"
    assert cli("pool", "unmount", "--quiet") == ""
    assert cli.document("pool", "unmount") == {"unmounted": True}
    assert not os.path.ismount(cli.state_dir / "pool")
    cli("pool")
    assert os.path.ismount(cli.state_dir / "pool")


def test_init_prints_the_id_and_the_directory_of_the_live_files(cli: Cli, workspace: Path) -> None:
    text = cli("init", os.fspath(workspace), "--name", "talking")
    session_id = ID.search(text.splitlines()[1])
    assert session_id is not None
    directory = cli.state_dir / "sessions" / session_id[0] / "main"
    assert f"Session ID: {session_id[0]}" in text.splitlines()
    assert f"Work in this directory: {directory}" in text.splitlines()
    assert cli("cleanup", "talking") == "Session 'talking' cleaned up successfully"

    quiet_id, quiet_directory = cli("init", os.fspath(workspace), "--quiet").split(",")
    assert quiet_directory == f"{cli.state_dir}/sessions/{quiet_id}/main"
    assert cli("cleanup", quiet_id, "--quiet") == ""

    document = cli.document("init", os.fspath(workspace))
    expected = {
        "session_id": document["session_id"],
        "name": None,
        "directory": f"{cli.state_dir}/sessions/{document['session_id']}/main",
        "base": "/",
        "workspace": os.fspath(workspace),
        "network": "nat",
    }
    assert {key: document[key] for key in expected} == expected
    assert cli.document("cleanup", document["session_id"]) == {"cleaned_up": document["session_id"]}


def test_init_without_a_directory_starts_in_the_current_one(cli: Cli) -> None:
    session = cli("init", "--quiet").partition(",")[0]
    assert cli("exec", session, "--", "pwd") == os.getcwd()


def test_the_host_sees_the_live_files_and_the_real_directory_never_changes(cli: Cli, workspace: Path) -> None:
    (workspace / "kept").write_text("original\n")
    session, directory = cli("init", os.fspath(workspace), "--quiet").split(",")
    cli("exec", session, "--", "echo changed >kept; echo new >made")
    live = Path(directory + os.fspath(workspace))
    assert (live / "kept").read_text() == "changed\n"
    assert (live / "made").read_text() == "new\n"
    (live / "given").write_text("from the host\n")
    assert cli("exec", session, "--", "cat given") == "from the host"
    assert [(path.name, path.read_text()) for path in workspace.iterdir()] == [("kept", "original\n")]
    cli("snapshot", session, "here")
    cli("restore", session, "here")
    assert (live / "made").read_text() == "new\n"  # the same path after a restore


def test_init_on_a_root_file_system_uses_it_as_the_base(cli: Cli, tmp_path: Path) -> None:
    root = make_root_file_system(tmp_path / "root")
    document = cli.document("init", os.fspath(root))
    assert (document["base"], document["workspace"]) == (os.fspath(root), "/")
    session = document["session_id"]
    assert cli("exec", session, "--", "cat /etc/motto; pwd") == "tiny\n/"
    cli("exec", session, "--", "x=kept; echo larger >/etc/motto")
    cli("snapshot", session, "s")
    cli("exec", session, "--", "x=lost; echo lost >/etc/motto")
    cli("restore", session, "s")
    assert cli("exec", session, "--", "echo $x; cat /etc/motto") == "kept\nlarger"
    explicit = cli("init", "--base", os.fspath(root), "--quiet").partition(",")[0]
    assert cli("exec", explicit, "--", "cat /etc/motto") == "tiny"


def make_root_file_system(root: Path) -> Path:
    """Make the smallest usable one: bash, three programs, and the libraries they are linked with."""
    (root / "etc").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "etc/motto").write_text("tiny\n")
    for program in ("bash", "ls", "cat", "sleep"):
        path = shutil.which(program)
        assert path is not None
        shutil.copy(path, root / "bin" / program)
        linked = subprocess.run(["ldd", path], capture_output=True, check=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            target = root / library[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "bin/sh").symlink_to("bash")
    return root


def test_snapshot_prints_the_name_of_the_checkpoint(cli: Cli, shell: str) -> None:
    assert cli("snapshot", shell, "first") == "Checkpoint 'first' created successfully"
    assert cli("snapshot", shell, "--quiet") == "checkpoint-1"
    document = cli.document("snapshot", shell)
    assert document.pop("memory_bytes") > 0
    assert document == {"checkpoint": "checkpoint-2", "session_id": shell, "branch": "main", "kind": "full"}


def test_restore_prints_the_new_state_of_the_branch(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=saved")
    cli("snapshot", shell, "here")
    cli("exec", shell, "--", "x=lost")
    assert re.fullmatch(r"Checkpoint 'here' restored, new PID: \d+", cli("restore", shell, "here"))
    assert cli("exec", shell, "--", "echo $x") == "saved"
    assert cli("restore", f"{shell}:main", "here", "--quiet") == "here"
    document = cli.document("restore", shell, "here")
    assert document.pop("pid") > 1
    assert document == {"checkpoint": "here", "branch": "main", "kind": "full"}


def test_fork_makes_new_live_branches(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=common; cd /tmp")
    cli("snapshot", shell, "here")
    lines = cli("fork", shell, "here", "--n", "2").splitlines()
    assert [line.split()[0] for line in lines] == ["fork-1", "fork-2"]
    assert all(re.search(r" pid=\d+ socket=/proc/\d+/root\S+ duration=[\d.]+ms$", line) for line in lines)
    assert cli("fork", shell, "here", "--id", "third", "--quiet") == "third"
    document = cli.document("fork", shell, "here", "--id", "fourth", "--n", "1")
    (branch,) = document["branches"]
    assert (document["session_id"], branch["id"], branch["status"]) == (shell, "fourth", "running")
    assert branch["directory"] == f"{cli.state_dir}/sessions/{shell}/fourth"
    for name in ("fork-1", "fork-2", "third", "fourth"):
        cli("exec", f"{shell}:{name}", "--", f"y={name}")
    for name in ("fork-1", "fork-2", "third", "fourth"):
        assert cli("exec", f"{shell}:{name}", "--", "echo $x $y $PWD") == f"common {name} /tmp"


def test_fork_of_a_live_branch_saves_that_branch_first(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=unsaved")
    assert cli("fork", shell, "main", "--id", "copy", "--quiet") == "copy"
    assert cli("exec", f"{shell}:copy", "--", "echo $x") == "unsaved"
    assert cli("list", shell, "--quiet") == "checkpoint-1"


@pytest.mark.quick
def test_list_and_tree_show_sessions_checkpoints_and_branches(cli: Cli, workspace: Path) -> None:
    assert cli("list") == "No sessions found"
    session = cli("init", os.fspath(workspace), "--name", "shown", "--quiet").partition(",")[0]
    cli("snapshot", session, "first")
    cli("snapshot", session, "second")
    cli("fork", session, "first", "--id", "side")

    assert re.search(rf"^  {session} shown branches=2 checkpoints=2 ", cli("list"), re.MULTILINE)
    assert cli("list", "--quiet") == session
    (entry,) = cli.document("list")["sessions"]
    assert (entry["session_id"], entry["name"], entry["branches"], entry["checkpoints"]) == (
        session,
        "shown",
        2,
        2,
    )

    lines = cli("list", "shown").splitlines()
    assert lines[0] == "Checkpoints:"
    assert any(
        line.startswith("  second parent=first status=ready layers=second,first branch=main memory=")
        for line in lines
    )
    assert any(line.startswith("  side checkpoint=first status=running pid=") for line in lines)
    assert cli("list", session[:6], "--quiet") == "first\nsecond"
    document = cli.document("list", session)
    assert document["session_id"] == session
    assert [(point["id"], point["parent"]) for point in document["checkpoints"]] == [
        ("first", None),
        ("second", "first"),
    ]
    assert [(branch["id"], branch["status"]) for branch in document["branches"]] == [
        ("main", "running"),
        ("side", "running"),
    ]

    drawn = [re.sub(r"(\w\)?)  .*", r"\1", line) for line in cli("tree", session).splitlines()]
    assert drawn == [
        f"{session} (shown)",
        "● first",
        "├─ ▶ side",
        "└─ ● second",
        "   └─ ▶ main",
    ]
    assert cli("tree", session, "--quiet") == ""
    assert all(point["files_bytes"] > 0 for point in cli.document("tree", session)["checkpoints"])


def test_destroy_ends_a_branch_and_keeps_its_checkpoints(cli: Cli, shell: str) -> None:
    cli("fork", shell, "main", "--n", "3")
    cli("snapshot", f"{shell}:fork-2", "of-a-branch")
    assert cli("destroy", f"{shell}:fork-2") == "Branch 'fork-2' destroyed successfully"
    assert cli("destroy", f"{shell}:fork-3", "--quiet") == ""
    assert cli.document("destroy", f"{shell}:fork-4") == {"destroyed": "fork-4"}
    document = cli.document("list", shell)
    assert [branch["id"] for branch in document["branches"]] == ["main"]
    assert "of-a-branch" in [point["id"] for point in document["checkpoints"]]


@pytest.mark.parametrize(
    ("verb", "words", "step"),
    [
        ("create", ["init"], "start"),
        ("exec", ["exec", "S", "--", "true"], "run"),
        ("snapshot", ["snapshot", "S", "here"], "dump"),
    ],
)
def test_timings_show_the_steps_of_an_operation(
    cli: Cli, shell: str, verb: str, words: list[str], step: str
) -> None:
    words = [shell if word == "S" else word for word in words]
    ended = cli.run("--timings", *words)
    assert re.search(rf"^{verb} main: [\d.]+ ms  \(.*\b{step} [\d.]+", ended.err, re.MULTILINE)
    words = ["other" if word == "here" else word for word in words]
    timings = cli.document("--timings", *words)["timings"]
    assert [timing["operation"] for timing in timings] == [verb]
    assert timings[0]["phases_ms"][step] <= timings[0]["total_ms"]
