"""Completion: what may follow the words typed so far, and the scripts by which shells ask for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Cli
from support.window import Window

BIN = Path(sys.executable).parent
VERBS = {"attach", "cleanup", "exec", "fork", "init", "output", "restore", "screen", "snapshot", "wait-for"}


@pytest.fixture
def named(cli: Cli, workspace: Path) -> str:
    """A session with two checkpoints, a fork, a second terminal and a job."""
    cli("init", os.fspath(workspace), "--name", "demo")
    cli("snapshot", "demo", "ready")
    cli("snapshot", "demo", "later")
    cli("fork", "demo", "ready", "--id", "side")
    cli("terminal", "new", "demo", "build")
    cli("wait", "demo", cli("exec", "demo", "--detach", "--quiet", "--", "true"))
    return "demo"


def candidates(cli: Cli, *words: str) -> list[str]:
    return cli("__complete", *words).split()


def test_verbs_and_actions_are_offered_first_and_after_common_options(cli: Cli) -> None:
    assert set(candidates(cli, "")) >= VERBS
    assert candidates(cli, "wait") == ["wait", "wait-for"]
    assert candidates(cli, "--json", "--state-dir", "/somewhere", "sna") == ["snapshot"]
    assert candidates(cli, "terminal", "") == ["close", "list", "new", "resize"]
    assert candidates(cli, "pool", "r") == ["resize"]


def test_existing_names_are_offered_and_nothing_is_changed(cli: Cli, named: str) -> None:
    before = everything_in(cli, named)
    assert candidates(cli, "exec", "") == ["demo", "demo:main", "demo:side"]
    assert candidates(cli, "exec", "demo:") == ["demo:main", "demo:side"]
    assert candidates(cli, "attach", "demo:s") == ["demo:side"]
    assert candidates(cli, "cleanup", "d") == ["demo"]  # takes no branch
    assert candidates(cli, "restore", named, "") == ["later", "ready"]
    assert candidates(cli, "restore", "demo:side", "r") == ["ready"]
    assert candidates(cli, "fork", named, "") == ["later", "main", "ready", "side"]
    assert candidates(cli, "terminal", "close", named, "") == ["build", "main"]
    assert candidates(cli, "send", named, "--terminal", "") == ["build", "main"]
    assert candidates(cli, "send", "demo:side", "--terminal", "") == ["main"]
    assert candidates(cli, "wait", named, "") == cli("jobs", named, "--quiet").split()
    elsewhere = ("--state-dir", os.fspath(cli.state_dir), "cleanup", "")
    assert cli.run("__complete", *elsewhere, env={"WAYPOINT_STATE_DIR": "/nowhere"}).lines == ["demo"]
    assert everything_in(cli, named) == before


def everything_in(cli: Cli, session: str) -> object:
    document = cli.document("list", session)
    return [
        [(point["id"], point["parent"]) for point in document["checkpoints"]],
        [(branch["id"], branch["pid"]) for branch in document["branches"]],
        cli("jobs", session),
    ]


def test_older_command_words_are_completed_too(cli: Cli, named: str) -> None:
    before = everything_in(cli, named)
    assert set(candidates(cli, "")) >= {"create", "checkpoint", "fork-exec"}
    assert candidates(cli, "create", "") == candidates(cli, "fork-exec", "d") == ["demo"]
    assert candidates(cli, "fork-exec", named, "") == ["main", "side"]
    assert candidates(cli, "exec", named, "s") == ["side"]
    assert candidates(cli, "--state-dir", os.fspath(cli.state_dir), "destroy", named, "") == ["main", "side"]
    assert candidates(cli, "snapshot", named, "") == ["later", "main", "ready", "side"]
    assert candidates(cli, "cp", named, "./file", "") == ["main:/", "side:/"]
    assert candidates(cli, "cp", named, "si") == ["side:/"]
    assert candidates(cli, "info", named, "r") == ["ready"]
    assert candidates(cli, "create", "nosuch", "") == []
    lite = subprocess.run(
        [BIN / "checkpoint-lite", "__complete", "restore", named, "l"],
        env=cli.env,
        capture_output=True,
        check=True,
    )
    assert lite.stdout == b"later\n"
    assert everything_in(cli, named) == before


def test_options_are_offered_after_a_dash_and_choices_as_their_values(cli: Cli) -> None:
    assert candidates(cli, "screen", "any", "--fo") == ["--format"]
    assert "--isolated" in candidates(cli, "exec", "any", "--")
    assert not any(word.startswith("-") for word in candidates(cli, ""))  # they would hide the names
    assert candidates(cli, "exec", "any", "--", "--iso") == []  # this option is the command's
    assert candidates(cli, "screen", "any", "--format", "") == ["ansi", "html", "png", "text"]
    assert candidates(cli, "completion", "") == ["bash", "fish", "zsh"]


def test_unknown_names_give_no_candidates(cli: Cli) -> None:
    for words in (["fork", "nosuch", ""], ["wait", "nosuch:none", ""], ["restore", "../x", ""]):
        assert candidates(cli, *words) == []


def test_without_a_state_directory_completion_is_silent_and_makes_none(cli: Cli, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for words in (["exec", ""], ["fork", "x", ""], ["wait", "x", ""], [""]):
        ended = cli.run("__complete", *words, env={"WAYPOINT_STATE_DIR": os.fspath(nowhere)})
        assert (ended.exit_code, ended.err) == (0, "")
    assert not nowhere.exists()


def test_with_an_unreadable_catalogue_only_verbs_are_offered(cli: Cli, tmp_path: Path) -> None:
    configured = tmp_path / ".waypoint/config.json"
    configured.parent.mkdir()
    configured.write_text(json.dumps({"no_such_setting": 1}))
    ended = cli.run("__complete", "exec", "")
    assert (ended.exit_code, ended.out, ended.err) == (0, b"", "")
    assert "exec" in candidates(cli, "ex")
    configured.unlink()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(cli: Cli, tmp_path: Path, shell: str) -> None:
    script = cli("completion", shell)
    assert script == cli("completion", shell, "--quiet")
    assert cli.document("completion", shell) == {"script": script + "\n"}
    if shutil.which(shell) is None:
        return
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run([shell, "-n", os.fspath(file)], check=True)


def test_an_unknown_shell_is_wrong_usage(cli: Cli) -> None:
    assert cli.run("completion", "tcsh").exit_code == 2


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile"], ""),
    "zsh": (["zsh", "-f"], "autoload -U compinit; compinit -D -u;"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_in_a_real_shell(cli: Cli, named: str, shell: str) -> None:
    command, preparation = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with Window(command) as window:
        window.type(
            f"export PATH={BIN}:$PATH WAYPOINT_STATE_DIR={cli.state_dir} HOME={cli.env['HOME']} PS1='> ';"
            f'{preparation} eval "$(waypoint completion {shell})"; clear; echo prepared\r'
        )
        window.wait_for(r"^prepared\n> $")
        for typed, completed in (
            ("waypoint fork demo rea\t", "waypoint fork demo ready"),
            ("waypoint exec demo:si\t", "waypoint exec demo:side"),
            ("waypoint screen demo --form\tpn\t", "waypoint screen demo --format ?png"),
            ("waypoint termi\t", "waypoint terminal"),
            ("checkpoint-lite restore demo rea\t", "checkpoint-lite restore demo ready"),
            ("waypoint cp demo file si\t", "waypoint cp demo file side:/"),
        ):
            window.type(typed)
            window.wait_for(rf"^> {completed} ?$")
            window.type("\x15")  # C-u deletes the line
            window.wait_for(r"^> $")
        window.type("waypoint fork demo \t\t")
        shown = window.wait_for(r"later +main +ready +side")
        assert "--" not in shown
        window.type("\x15exit\r")
