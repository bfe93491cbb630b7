"""Terminals through the command line: open, type, look, wait; their programs keep running in every branch."""

import os
import re
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli
from support.waiting import DEADLINE_S
from support.waiting import wait_for as until

WAYPOINT = str(Path(sys.executable).with_name("waypoint"))
PNG = b"\x89PNG\r\n\x1a\n"


def wait_for(cli: Cli, target: str, *condition: str) -> None:
    assert cli("wait-for", target, *condition, "--timeout", str(DEADLINE_S)) == ""


def wait_until_it_sleeps(cli: Cli, session: str) -> None:
    """Wait until sleep runs: if an interrupt arrives while bash starts a program, bash can forget that program."""
    cli("exec", session, "--isolated", "--", "until pgrep -x sleep; do :; done")


def screen(cli: Cli, target: str, *options: str) -> str:
    """Return what a terminal shows, without the empty lines at its end."""
    return cli.run("screen", target, *options).text.rstrip("\n")


def return_both_ways(cli: Cli, session: str) -> list[str]:
    """Save this point and return to it in both ways: ``main`` restored, and a fork."""
    cli("snapshot", session, "point")
    cli("send", session, "C-c", "C-c")  # a change that the restore must undo
    cli("restore", session, "point")
    return [session, f"{session}:{cli('fork', session, 'point', '--quiet')}"]


# -- open, list, close, resize


def test_terminals_are_opened_listed_resized_and_closed_in_every_form(cli: Cli, shell: str) -> None:
    printed = cli("terminal", "new", shell, "side", "--size", "60x10", "--cwd", "/usr", "--env", "V=a b")
    assert printed == "Terminal 'side' opened"
    assert cli("terminal", "new", shell, "third", "--quiet", "--shell", "sh") == "third"
    assert cli.document("terminal", "new", shell, "fourth") == {"name": "fourth", "rows": 40, "columns": 120}
    assert cli("exec", shell, "--terminal", "side", "--", 'echo "$V" $PWD; stty size') == "a b /usr\n10 60"

    lines = cli("terminal", "list", shell).splitlines()
    assert lines[0] == "Terminals:"
    assert any(re.fullmatch(r"  side prompt size=60x10 shell=\d+", line) for line in lines)
    assert set(cli("terminal", "list", shell, "--quiet").split()) == {"main", "side", "third", "fourth"}
    listed = {entry["name"]: entry for entry in cli.document("terminal", "list", shell)["terminals"]}
    assert (listed["side"]["state"], listed["side"]["rows"], listed["side"]["job"]) == ("prompt", 10, None)

    assert cli("terminal", "resize", shell, "side", "72x12") == "Terminal 'side' is 72x12"
    assert cli("exec", shell, "--terminal", "side", "--", "stty size") == "12 72"
    assert len(cli.run("screen", shell, "--terminal", "side").lines) == 12

    assert cli("terminal", "close", shell, "third") == "Terminal 'third' closed"
    assert cli.document("terminal", "close", shell, "fourth") == {"name": "fourth"}
    assert set(cli("terminal", "list", shell, "--quiet").split()) == {"main", "side"}


def test_init_gives_the_first_terminal_its_size(cli: Cli, workspace: Path) -> None:
    session = cli("init", os.fspath(workspace), "--size", "100x30", "--quiet").partition(",")[0]
    assert cli("exec", session, "--", "stty size") == "30 100"


def test_an_unknown_terminal_is_not_found_and_a_taken_name_is_refused(cli: Cli, shell: str) -> None:
    for words in (
        ["send", shell, "--terminal", "none", "x"],
        ["screen", shell, "--terminal", "none"],
        ["wait-for", shell, "--terminal", "none", "--exit"],
        ["interrupt", shell, "--terminal", "none"],
        ["terminal", "close", shell, "none"],
        ["terminal", "resize", shell, "none", "80x24"],
    ):
        ended = cli.run(*words)
        assert (ended.exit_code, ended.out) == (3, b""), words
        assert "no terminal named 'none'\n  hint: waypoint terminal list" in ended.err, words
    assert cli.run("exec", shell, "--terminal", "none", "--", "true").exit_code == 125
    taken = cli.failure("terminal", "new", shell, "main")
    assert taken.exit_code == 6
    assert "already open" in taken.message


def test_wrong_sizes_names_patterns_and_numbers_are_wrong_usage(cli: Cli, shell: str) -> None:
    for words in (
        ["terminal", "new", shell, "side", "--size", "0x10"],
        ["terminal", "new", shell, "side", "--size", "80x1001"],
        ["terminal", "new", shell, "no/name"],
        ["terminal", "new", shell, "side", "--shell", "no-such-shell"],
        ["terminal", "resize", shell, "main", "axb"],
        ["wait-for", shell, "--exit", "--timeout", "0"],
        ["wait-for", shell, "--idle", "nan"],
        ["screen", shell, "--scrollback", "-1"],
        ["send", shell],
        ["wait-for", shell],
        ["wait-for", shell, "--exit", "--idle", "10"],
        ["wait-for", shell, "--text", "("],
        ["screen", shell, "--format", "jpeg"],
    ):
        assert cli.run(*words).exit_code == 2, words
    assert cli("terminal", "list", shell, "--quiet") == "main"


# -- type, look, wait


def test_send_types_text_and_named_keys(cli: Cli, shell: str) -> None:
    cli("send", shell, "cat -v", "Enter")
    cli("send", shell, "a b", "Space", "x", "BSpace", "F5", "M-x", "Up", "Enter")
    wait_for(cli, shell, "--text", r"^a b \^\[\[15~\^\[x\^\[\[A$")
    cli("send", shell, "--literal", "Enter", " C-c", "Up")
    wait_for(cli, shell, "--text", r"^Enter C-cUp$")
    assert cli.document("send", shell, "Enter", "C-d") == {"sent": ["Enter", "C-d"]}
    wait_for(cli, shell, "--exit")
    cli("send", shell, "--", "-n", "C-u")  # words that look like options
    assert cli("exec", shell, "--", "echo free") == "free"


def test_each_terminal_has_its_own_screen_and_keys(cli: Cli, shell: str) -> None:
    cli("terminal", "new", shell, "side", "--size", "50x6")
    cli("send", shell, "--terminal", "side", "echo $((40+2)); sleep 600", "Enter")
    wait_for(cli, shell, "--terminal", "side", "--text", "^42$")
    assert "42" not in screen(cli, shell)
    assert "size=50x6" in cli("terminal", "list", shell)
    busy = cli.failure("exec", shell, "--terminal", "side", "--no-wait", "--", "true")
    assert (busy.exit_code, busy.code) == (125, "busy")
    assert cli("exec", shell, "--", "echo main is free") == "main is free"
    wait_until_it_sleeps(cli, shell)
    cli("interrupt", shell, "--terminal", "side")
    assert cli("exec", shell, "--terminal", "side", "--", "echo $((1+1))") == "2"


def test_the_screen_is_printed_as_text_colours_page_and_document(
    cli: Cli, shell: str, tmp_path: Path
) -> None:
    cli("terminal", "resize", shell, "main", "60x10")
    cli("exec", shell, "--", r"clear; seq 20; printf '<b>&\033[31mred\033[m'")
    shown = cli.run("screen", shell)
    assert shown.lines == [*(str(number) for number in range(12, 21)), "<b>&red"]
    assert cli.run("screen", shell, "--quiet").out == shown.out
    assert cli.run("screen", shell, "--scrollback", "3").lines == ["9", "10", "11", *shown.lines]
    ansi = cli.run("screen", shell, "--format", "ansi").lines
    assert len(ansi) == 10
    assert re.fullmatch(r"<b>&\x1b\[[0-9;]*31m" + "red" + r"\x1b\[[0-9;]*m", ansi[-1])
    page = cli("screen", shell, "--format", "html")
    assert page.startswith("<!DOCTYPE html>")
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    document = cli.document("screen", shell)
    assert document["cursor"] == {"row": 9, "column": 7, "visible": True}
    assert (document["rows"], document["columns"], document["alternate"]) == (10, 60, False)
    assert document["text"].split("\n") == shown.lines
    assert "html" in cli.document("screen", shell, "--format", "html")
    file = tmp_path / "screen.txt"
    assert cli("screen", shell, "--output", os.fspath(file)) == os.fspath(file)
    assert file.read_bytes() == shown.out


def test_the_screen_is_written_as_a_picture_to_a_pipe_or_file(cli: Cli, shell: str, tmp_path: Path) -> None:
    def size_of(image: bytes) -> tuple[int, int]:
        assert image.startswith(PNG)
        width, height = struct.unpack(">II", image[16:24])
        return width, height

    piped = cli.run("screen", shell, "--format", "png").out
    width, height = size_of(piped)
    assert 120 * 5 <= width <= 120 * 30
    assert 40 * 8 <= height <= 40 * 60
    cli("terminal", "resize", shell, "main", "60x20")
    file = tmp_path / "screen.png"
    assert cli("screen", shell, "--format", "png", "-o", os.fspath(file)) == os.fspath(file)
    assert size_of(file.read_bytes()) == (width // 2, height // 2)
    assert cli.failure_document("screen", shell, "--format", "png")["code"] == "usage"


def test_wait_for_waits_for_text_silence_or_the_end_or_times_out(cli: Cli, shell: str) -> None:
    cli("send", shell, "seq 200; sleep 600", "Enter")
    wait_for(cli, shell, "--text", "^150$")  # also text that has scrolled away
    wait_for(cli, shell, "--idle", "50")
    for condition, said in (
        (["--exit"], "did not end"),
        (["--text", "no.such"], "nothing matched 'no.such'"),
    ):
        late = cli.failure("wait-for", shell, *condition, "--timeout", "0.1")
        assert (late.exit_code, late.code) == (124, "wait_timeout")
        assert said in late.message
    wait_until_it_sleeps(cli, shell)
    cli("interrupt", shell)
    wait_for(cli, shell, "--exit")
    # A separate process group that is never empty: a key that arrives between two programs of the shell is lost.
    cli("send", shell, "sh -c 'trap exit INT; while sleep 0.01; do echo busy; done'", "Enter")
    wait_for(cli, shell, "--text", "^busy$")
    assert cli.run("wait-for", shell, "--idle", "5000", "--timeout", "0.2").exit_code == 124
    cli("send", shell, "C-c")
    wait_for(cli, shell, "--exit")
    document = cli.document("wait-for", shell, "--exit")
    assert (document["rows"], document["columns"]) == (40, 120)


# -- the same in every branch


def test_a_loop_saved_while_printing_continues_in_two_forks_without_a_gap(cli: Cli, shell: str) -> None:
    held = "[ $i != 150 ] || until [ -e /tmp/go ]; do sleep 0.02; done"
    loop = f"for i in $(seq 1 200); do echo $i; {held}; sleep 0.01; done"
    job = cli("exec", shell, "--detach", "--quiet", "--", loop)
    wait_for(cli, shell, "--text", "^20$")
    cli("snapshot", shell, "middle")
    assert cli.document("jobs", shell)["jobs"][0]["state"] == "running"
    forks = cli("fork", shell, "middle", "--n", "2", "--quiet").splitlines()
    for branch in ("main", *forks):
        target = f"{shell}:{branch}"
        cli("exec", target, "--isolated", "--", "touch /tmp/go")
        assert cli.run("wait", target, job, "--timeout", str(DEADLINE_S)).exit_code == 0
        assert cli("output", target, job).split("\n") == [str(number) for number in range(1, 201)]
        assert screen(cli, target).split("\n")[-2:] == ["199", "200"]


def test_each_branch_can_answer_a_prompt_differently(cli: Cli, shell: str) -> None:
    cli("send", shell, "read -p 'Really? ' answer; echo \"<$answer>\"", "Enter")
    wait_for(cli, shell, "--text", r"^Really\? $")
    cli("send", shell, "ye")
    wait_for(cli, shell, "--text", r"^Really\? ye$")
    for number, target in enumerate(return_both_ways(cli, shell)):
        assert screen(cli, target).endswith("\nReally? ye")
        cli("send", target, f"s {number}", "Enter")
        wait_for(cli, target, "--text", rf"^<yes {number}>$")


def test_vim_keeps_an_unfinished_edit_in_each_branch(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "export TERM=xterm-256color")
    cli("send", shell, "vim -u NONE -N /tmp/note", "Enter")
    wait_for(cli, shell, "--text", r'"/tmp/note" \[New')
    cli("send", shell, "i", "first line", "Enter", "second")
    wait_for(cli, shell, "--text", "^second")
    before = cli.document("screen", shell)
    assert before["alternate"]
    for number, target in enumerate(return_both_ways(cli, shell)):
        assert cli.document("screen", target) == before
        cli("send", target, f" line of {number}", "Escape", ":wq", "Enter")
        wait_for(cli, target, "--exit")
        assert cli("exec", target, "--", "cat /tmp/note") == f"first line\nsecond line of {number}"


def test_top_keeps_drawing_in_each_branch(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "export TERM=xterm-256color")
    cli("send", shell, "top -d 0.1", "Enter")
    wait_for(cli, shell, "--text", r"PID +USER")
    for target in return_both_ways(cli, shell):
        assert re.search(r"PID +USER", screen(cli, target))
        cli("exec", target, "--detach", "--isolated", "--", "exec -a newcomer sleep 600 || sleep 601")
        wait_for(cli, target, "--text", r"\d (sleep|newcomer)")
        cli("send", target, "q")
        wait_for(cli, target, "--exit")


def test_tmux_with_a_python_prompt_keeps_running_in_each_branch(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "export TERM=xterm-256color LANG=C.UTF-8")
    cli("send", shell, "tmux -f /dev/null -L inner new -s work 'python3 -q'", "Enter")
    wait_for(cli, shell, "--text", r"^>>> $")
    cli("send", shell, "answer = 6 * 7", "Enter", "print('the', ans")
    wait_for(cli, shell, "--text", r"print\('the', ans$")
    before = screen(cli, shell)
    assert re.search(r"^\[work\] 0:", before, re.MULTILINE)  # tmux's own line
    for target in return_both_ways(cli, shell):
        assert screen(cli, target).split("\n")[:-1] == before.split("\n")[:-1]
        cli("send", target, "wer)", "Enter")
        wait_for(cli, target, "--text", r"^the 42$")
        cli("send", target, "C-b", "c")  # a second window, by tmux's own key
        wait_for(cli, target, "--text", r"^\[work\] 0:\S+ +1:")
        cli("send", target, "C-b", "0")
        wait_for(cli, target, "--text", r"^the 42$")


# -- a person's own tmux around it


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator["Tmux"]:
    server = Tmux(tmp_path)
    yield server
    server.run("kill-server", check=False)


class Tmux:
    """A tmux server on the host, with its own socket."""

    def __init__(self, directory: Path) -> None:
        (directory / "tmux.conf").write_text("set -g status off\nset -g remain-on-exit on\n")
        self._command = [
            "tmux",
            "-u",
            "-L",
            f"waypoint-{secrets.token_hex(4)}",
            "-f",
            f"{directory}/tmux.conf",
        ]
        self._env = {"PATH": os.environ["PATH"], "TMUX_TMPDIR": os.fspath(directory), "LANG": "C.UTF-8"}

    def run(self, *words: str, check: bool = True) -> str:
        return subprocess.run(
            [*self._command, *words],
            env=self._env,
            capture_output=True,
            timeout=DEADLINE_S,
            check=check,
            text=True,
        ).stdout

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, shown := self.run("capture-pane", "-p", "-t", "work"), re.MULTILINE):
            assert time.monotonic() < deadline, f"{pattern!r} is not in:\n{shown}"


def test_attach_works_inside_tmux_on_the_host(cli: Cli, shell: str, tmux: Tmux) -> None:
    command = f"{WAYPOINT} --state-dir {cli.state_dir} attach {shell}"
    tmux.run("new-session", "-d", "-s", "work", "-x", "90", "-y", "25", command)
    tmux.wait_for(r"C-\] detaches")
    tmux.run("send-keys", "-t", "work", "stty size; x=typed", "Enter")
    tmux.wait_for("^25 90$")
    tmux.run("resize-window", "-t", "work", "-x", "70", "-y", "20")
    until(lambda: "size=70x20" in cli("terminal", "list", shell))
    cli("send", shell, "stty size", "Enter")  # both keyboards, one terminal
    tmux.wait_for("^20 70$")
    cli("snapshot", shell, "point")
    tmux.run("send-keys", "-t", "work", "clear; x=lost; echo gone soon", "Enter")
    tmux.wait_for("^gone soon$")
    cli("restore", shell, "point")
    tmux.wait_for("^20 70$")
    tmux.run("send-keys", "-t", "work", "echo [$x]", "Enter")
    tmux.wait_for(r"^\[typed\]$")
    tmux.run("send-keys", "-t", "work", "C-]")
    tmux.wait_for("Detached; .* runs on")
    assert cli("exec", shell, "--", "echo $x") == "typed"
