"""The program ``statefork`` as a user runs it: one-shot commands, the interactive shell, the benchmark."""

import fcntl
import json
import os
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_for
from waypoint import Waypoint


class StateFork:
    """Runs the program with its own state directory, on Waypoint."""

    def __init__(self, state_dir: Path, waypoint_state_dir: Path, workspace: Path) -> None:
        self.state_dir = state_dir
        self.workspace = workspace
        self.kept = ("--option", f"waypoint_state_dir={waypoint_state_dir}")
        self.method = (
            *("--method", "waypoint", "--dir", str(workspace), "--option", "build=false"),
            *self.kept,
        )

    def run(self, verb: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "statefork.cli.main",
            verb,
            "--state-dir",
            str(self.state_dir),
            *words,
        ]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=120, env=os.environ
        )

    def ok(self, verb: str, *words: str) -> str:
        done = self.run(verb, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def statefork(
    tmp_path: Path, state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> Iterator[StateFork]:
    yield StateFork(tmp_path / "environments", state_dir, workspace)
    with Waypoint(state_dir) as opened:
        for session in opened.sessions():
            session.cleanup(force=True)


def test_one_shot_commands_continue_the_same_environment(statefork: StateFork) -> None:
    words = ("--method", "ckpt", "--no-build", str(statefork.workspace), *statefork.kept)
    env = statefork.ok("create", *words).strip()
    statefork.ok("exec", env, "--", "x=1; echo one >/tmp/note")
    saved = statefork.ok("snapshot", env).strip()
    statefork.ok("exec", env, "--", "x=2")
    assert statefork.ok("exec", env, "--", "echo $x") == "2\n"
    assert statefork.ok("restore", env, saved) == f"Restored to snapshot {saved}\n"
    assert statefork.ok("exec", env, "--", "echo $x; cat /tmp/note") == "1\none\n"
    assert statefork.ok("fork", env, saved, "-n", "2", "--id", "a", "--id", "b") == "a\nb\n"
    statefork.ok("exec", env, "--branch", "a", "--", "x=a")
    assert statefork.ok("exec", env, "--branch", "b", "--", "echo $x") == "1\n"
    assert statefork.run("exec", env, "--", "exit_status() { return 7; }; exit_status").returncode == 7
    late = statefork.run("exec", env, "--timeout", "5", "--", "echo begun; sleep 100")
    assert (late.returncode, late.stderr) == (124, "statefork: error: command timed out after 5 s\n")
    assert late.stdout.startswith("begun\n"), "its output so far is missing"
    assert f"- {saved} (current: main, a, b)" in statefork.ok("tree", env)
    document = json.loads(statefork.ok("tree", env, "--json"))
    assert document["branches"] == {"main": saved, "a": saved, "b": saved}
    assert env in statefork.ok("list")
    assert "[SNAPSHOT  ] mean=" in statefork.ok("stats", env)
    assert statefork.ok("cleanup", env) == f"Environment {env} removed\n"
    assert statefork.ok("list") == "No environments.\n"


def python(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *words], capture_output=True, text=True, timeout=120, env=os.environ
    )


MAKE = """
import os, signal, sys
from statefork import create_env_manager
state_dir, waypoint_state_dir, workspace, end = sys.argv[1:]
env = create_env_manager(
    "ckpt_build", dockerfile_dir=workspace, build=False, waypoint_state_dir=waypoint_state_dir, state_dir=state_dir
)
env.exec_command("x=1")
print(env.core.id, env.snapshot(), flush=True)
env.exec_command("x=2")
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_others_can_continue_the_environment_of_a_killed_program(
    statefork: StateFork, state_dir: Path, workspace: Path
) -> None:
    done = python(MAKE, str(statefork.state_dir), str(state_dir), str(workspace), "killed")
    assert done.returncode == -9
    env, saved = done.stdout.split()
    assert statefork.ok("exec", env, "--", "echo $x") == "2\n"
    statefork.ok("restore", env, saved)
    assert statefork.ok("exec", env, "--", "echo $x") == "1\n"
    history = json.loads(statefork.ok("stats", env, "--json"))["history"]
    assert [entry["operation"] for entry in history][:4] == ["container", "exec", "snapshot", "exec"]
    wrong = statefork.run("restore", env, "00000000")
    assert (wrong.returncode, "no snapshot '00000000'" in wrong.stderr) == (2, True)
    wrong = statefork.run("exec", env, "--branch", "nobody", "--", "true")
    assert (wrong.returncode, "no live branch 'nobody'" in wrong.stderr) == (2, True)
    statefork.ok("cleanup", env)


def test_a_program_that_does_not_clean_up_leaves_nothing(
    statefork: StateFork, state_dir: Path, workspace: Path
) -> None:
    done = python(MAKE, str(statefork.state_dir), str(state_dir), str(workspace), "forgets")
    assert done.returncode == 0, done.stderr
    assert statefork.ok("list") == "No environments.\n"
    with Waypoint(state_dir) as opened:
        assert opened.sessions() == []


def test_mistakes_are_reported_and_change_nothing(statefork: StateFork) -> None:
    unknown = statefork.run("create", "--method", "teleport")
    assert unknown.returncode == 2
    assert "Unknown method: teleport" in unknown.stderr
    assert "waypoint_attach" in unknown.stderr, "the known ones must be listed"
    missing = statefork.run("create", "--method", "waypoint_attach")
    assert missing.returncode == 2
    assert "waypoint_attach needs the option 'session_id'" in missing.stderr
    nowhere = statefork.run("exec", "nothing", "--", "true")
    assert nowhere.returncode == 2
    assert "no environment 'nothing'" in nowhere.stderr
    assert statefork.run("bench", "--workload", "dance").returncode == 2
    assert "--repeat 0" in statefork.run("bench", "--methods", "memory", "--repeat", "0").stderr
    nowhere = statefork.run("bench", "--methods", "memory", "--output", "/etc/hosts/results")
    assert (nowhere.returncode, "--output /etc/hosts/results" in nowhere.stderr) == (2, True)
    assert "Unknown method: teleport" in statefork.run("bench", "--methods", "teleport").stderr
    theirs = statefork.run("bench", "--methods", "memory,criu_attach", "--option", "target_pid=1")
    assert (theirs.returncode, "criu_attach takes over what someone else runs" in theirs.stderr) == (2, True)
    assert (
        "takes the option 'speed'"
        in statefork.run("bench", "--methods", "memory", "--option", "speed=9").stderr
    )
    useless = statefork.run("create", "--method", "memory", "--dir", ".")
    assert (useless.returncode, "memory takes no option 'dockerfile_dir'" in useless.stderr) == (2, True)
    silent = statefork.run(
        "create", "--method", "docker", "--option", "docker_host=unix:///nowhere/docker.sock"
    )
    assert silent.returncode == 1
    assert "docker is not available" in silent.stderr
    assert "hint: " in silent.stderr
    assert json.loads(statefork.run("restore", "nothing", "x", "--json").stdout)["error"]["message"]


def test_the_interactive_shell_prints_the_published_texts(statefork: StateFork) -> None:
    script = "\n".join(
        (
            "cmd export A=1",
            "snapshot",
            "restore nothing",
            "set cmd off",
            "echo $A",
            "ls /nothing",
            "forks",
            "fexec main echo in main # it's",
            "tree",
            "history",
            "storage",
            "snapshot --park",
            "exit",
        )
    )
    done = statefork.run("shell", *statefork.method, stdin=script)
    assert done.returncode == 0, done.stderr
    for text in (
        "StateFork Container Manager - Interactive Shell",
        "Using WaypointBuildManager with waypoint backend",
        "Available commands: ",
        "Snapshot created: ",
        "Snapshot nothing not found.",
        "--- stdout ---\n1\n",
        "(exit code 2)",
        "- main (current): base=None status=running",
        "--- stdout ---\nin main\n(exit code 0)",
        "Snapshot Tree:\n - ",
        "[CONTAINER ] -> main took ",
        "[Storage Cost Summary #1]\n>> ",
        "Snapshot failed.",
        "Cleaning up resources...",
    ):
        assert text in done.stdout, text


def test_a_shell_that_cannot_start_ends_with_2(statefork: StateFork) -> None:
    words = ("--method", "waypoint_attach", "--option", "session_id=nothing", *statefork.kept)
    done = statefork.run("shell", *words)
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_the_benchmark_writes_its_files(statefork: StateFork, tmp_path: Path) -> None:
    words = ["--methods", "waypoint", "--workload", "db", "--repeat", "2", "--output", str(tmp_path / "out")]
    table = statefork.ok("bench", *words, *statefork.method[2:])
    assert table.splitlines()[2].startswith("| waypoint | ")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "bench.csv",
        "bench.json",
        "bench.md",
        "bench.svg",
        "bench.txt",
    }
    found = json.loads((tmp_path / "out/bench.json").read_text())["measurements"][0]
    assert found["is_right"] is True
    assert found["statistics"]["snapshot"]["count"] == 2
    assert found["statistics"]["answer"]["min"] >= found["statistics"]["restore"]["min"]
    assert all(size > 0 for size in found["snapshot_bytes"])
    assert "[SNAPSHOT  ] mean=" in (tmp_path / "out/bench.txt").read_text()


@pytest.mark.alone  # TestCriu uses the same files of the host
def test_the_benchmark_leaves_no_files_on_the_host_with_plain_criu(
    statefork: StateFork, tmp_path: Path
) -> None:
    before = homes_of_workloads()
    words = [
        "--methods",
        "criu",
        "--workload",
        "kv",
        "--repeat",
        "1",
        "--option",
        f"work_dir={tmp_path}/work",
    ]
    assert "| criu | " in statefork.ok("bench", *words)
    assert homes_of_workloads() - before == set()
    assert list((tmp_path / "work").iterdir()) == []


def homes_of_workloads() -> set[Path]:
    return set(Path("/var/tmp").glob("sf-*"))


def test_backends_are_listed_with_what_they_save(statefork: StateFork) -> None:
    document = json.loads(statefork.ok("backends", "--json"))
    by_name = {entry["backend"]: entry for entry in document["backends"]}
    assert by_name["memory"]["available"]
    assert "shell" in by_name["waypoint"]["keeps"]


def test_the_interactive_shell_has_completion_and_a_lasting_history(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "statefork.cli.main", "shell", "--method", "memory"]
    with AtShell([*command, "--state-dir", str(tmp_path)]) as person:
        person.type("snap\t\r", "Snapshot created: ")
        person.type("cmd echo a$A b\r", "--- stdout ---\r\na b")
        person.type("exit\r", "Cleaning up resources...")
    assert person.status == 0
    with AtShell([*command, "--state-dir", str(tmp_path)]) as person:
        person.type("\x1b[A\x1b[A\r", "--- stdout ---\r\na b")
        person.read_until_it_waits()
        person.type("\x03", "interrupted; cleaned up")
    assert person.status == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shell_history"]


class AtShell:
    """The interactive shell on a terminal; the block begins at its prompt and ends with it."""

    def __init__(self, command: list[str]) -> None:
        self._terminal, inside = os.openpty()
        self._process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inside)
        self._unread = ""
        self.status: int | None = None

    def __enter__(self) -> "AtShell":
        self._read_until("StateFork > ")
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure:
            self._process.kill()
        self.status = self._process.wait(60)
        os.close(self._terminal)

    def type(self, keys: str, expected: str) -> None:
        os.write(self._terminal, keys.encode())
        self._read_until(expected)

    def read_until_it_waits(self) -> None:
        """Read to the prompt, and then until the program sleeps there: readline overlooks a signal that comes
        between the two, until the next key."""
        self._read_until("StateFork > ")
        wchan = Path(f"/proc/{self._process.pid}/wchan")
        wait_for(lambda: "poll_schedule" in wchan.read_text())

    def _read_until(self, expected: str) -> None:
        while expected not in self._unread:
            assert select.select([self._terminal], [], [], 60)[0], self._unread
            self._unread += os.read(self._terminal, 4096).decode(errors="replace")
        self._unread = self._unread.partition(expected)[2]
