"""Files-only checkpoints, park, suspend, resume and manual mode as users type them."""

import re
import subprocess
from pathlib import Path

from support.command_line import Cli
from support.waiting import wait_for
from waypoint.kernel.processes.process_tree import end_tree


def test_files_only_checkpoints_are_shown_as_such(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=gone; echo kept >/root/note")
    said = cli("snapshot", shell, "files", "--files-only")
    assert said == "Checkpoint 'files' created successfully"
    assert "kind=files" in cli("list", shell)
    [saved] = cli.document("tree", shell)["checkpoints"]
    assert (saved["kind"], saved["memory_bytes"]) == ("files", 0)
    document = cli.document("restore", shell, "files")
    assert document["kind"] == "files"
    assert document["pid"] > 1
    assert cli("exec", shell, "--", "echo [$x] $(cat /root/note)") == "[] kept"


def test_a_branch_is_parked_by_either_verb(cli: Cli, shell: str) -> None:
    cli("fork", shell, "main", "--id", "side")
    said = cli("park", f"{shell}:side", "idea")
    assert said == "Branch 'side' parked as checkpoint 'idea'"
    cli("fork", shell, "idea", "--id", "side")
    assert cli.document("snapshot", f"{shell}:side", "other", "--park")["parked"] == "side"
    refused = cli.failure("park", shell)
    assert (refused.exit_code, refused.code) == (2, "usage")
    assert f"waypoint suspend {shell}" in refused.hint


def test_suspend_reports_what_is_kept_and_what_is_lost(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=kept")
    lines = cli("suspend", shell).splitlines()
    assert lines == [
        f"Session '{shell}' suspended; checkpoints remain on disk — bring it back: waypoint resume {shell}",
        "  main checkpoint=suspended-main-1",
    ]
    assert " suspended" in cli("list").splitlines()[1]
    assert "main checkpoint=suspended-main-1 status=suspended pid=- socket=- " in cli("list", shell)
    assert cli.document("list", shell)["branches"][0]["pid"] is None
    refused = cli.failure("snapshot", shell)
    assert (refused.exit_code, refused.code) == (5, "suspended")
    assert f"waypoint resume {shell}" in refused.hint
    ended = cli.run("exec", shell, "--", "true")
    assert ended.exit_code != 0
    assert f"waypoint resume {shell}" in ended.err
    assert cli("suspend", shell) == f"Session '{shell}' is suspended already"
    said = cli("resume", shell).splitlines()
    assert said[0] == f"Session '{shell}' resumed"
    assert re.fullmatch(r"  main checkpoint=suspended-main-1 pid=\d+", said[1])
    assert cli("exec", shell, "--", "echo $x") == "kept"
    assert cli("resume", shell) == f"Session '{shell}' is not suspended"
    dropped = cli("suspend", shell, "--drop")
    assert "main checkpoint=suspended-main-1 lost: what it did since 'suspended-main-1'" in dropped
    assert cli.document("resume", shell)["branches"][0]["status"] == "running"


def test_a_restore_takes_a_host_program_back_with_its_files(cli: Cli, workspace: Path) -> None:
    document = cli.document("init", str(workspace), "--work-dir")
    session, work = str(document["session_id"]), Path(str(document["directory"]))
    assert work.name == "work"
    counting = "i=0; while :; do i=$((i+1)); echo $i >>steps; sleep 0.01; done"
    with subprocess.Popen(
        ["setsid", "sh", "-c", counting],
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as program:
        wait_for(lambda: (work / "steps").exists())
        said = cli("snapshot", session, "early", "--pid", str(program.pid))
        assert said == "Checkpoint 'early' created successfully"
        assert "kind=process" in cli("list", session)
        end_tree(program.pid)  # its child too, which has the pid as its process group
        program.wait()
        (work / "steps").unlink()
        assert cli("restore", session, "early") == f"Checkpoint 'early' restored, new PID: {program.pid}"
        saved = (work / "steps").read_text()
        wait_for(lambda: len((work / "steps").read_text()) > len(saved))
        steps = (work / "steps").read_text().split()
        assert steps == [str(number + 1) for number in range(len(steps))]
        end_tree(program.pid)
    refused = cli.failure("snapshot", session, "no", "--pid", "1")
    assert refused.code == "usage"
    assert cli.failure("snapshot", session, "no", "--pid", "4000000").exit_code == 3
