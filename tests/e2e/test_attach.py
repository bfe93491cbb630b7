"""A person attached through a real terminal types, resizes, detaches, and sees a restore."""

import re
import sys
from pathlib import Path

import pytest

from support.command_line import Cli
from support.waiting import wait_for
from support.window import Window

WAYPOINT = str(Path(sys.executable).with_name("waypoint"))
DETACH = "\x1d"


@pytest.fixture
def shell(cli: Cli, tmp_path: Path) -> str:
    return cli("init", str(tmp_path), "--quiet").split(",")[0]


def attached(cli: Cli, target: str, *options: str, rows: int = 24, columns: int = 80) -> Window:
    command = [WAYPOINT, "--state-dir", str(cli.state_dir), "attach", target, *options]
    window = Window(command, rows=rows, columns=columns)
    window.wait_for(r"C-\] detaches")
    return window


def test_typed_commands_run_and_detaching_leaves_them_running(cli: Cli, shell: str) -> None:
    with attached(cli, shell) as window:
        window.type("echo $((6*7)); export LATER=kept\r")
        window.wait_for(r"^42$")
        window.type(DETACH)
        assert window.wait_until_ended() == 0
        assert b"runs on" in window.printed
    assert cli("exec", shell, "--", "echo $LATER") == "kept"


def test_programs_get_the_window_size_and_its_changes(cli: Cli, shell: str) -> None:
    with attached(cli, shell, rows=30, columns=100) as window:
        window.type("stty size\r")
        window.wait_for(r"^30 100$")
        window.resize(20, 70)
        window.type("stty size\r")
        window.wait_for(r"^20 70$")


def test_interrupts_and_full_screen_programs_work_as_on_any_terminal(cli: Cli, shell: str) -> None:
    with attached(cli, shell) as window:
        window.type("sleep 1000\r")
        cli("exec", shell, "--isolated", "--", "until pgrep -x sleep; do :; done")
        window.type("\x03")
        cli("wait-for", shell, "--exit", "--timeout", "30")
        window.type("vim -u NONE -N /tmp/note\r")
        window.wait_for(r'"/tmp/note" \[New')
        window.type("ihello from vim")
        window.wait_for(r"^hello from vim")
        window.type("\x1b:wq\r")
        cli("wait-for", shell, "--exit", "--timeout", "30")
        window.type("cat /tmp/note\r")
        window.wait_for(r"^hello from vim$")


@pytest.mark.quick
def test_a_restore_redraws_the_screen_of_an_attached_person_who_can_keep_typing(cli: Cli, shell: str) -> None:
    with attached(cli, shell) as window:
        window.type("python3 -q\r")
        window.wait_for(r"^>>> ")
        window.type("x = 'saved'\r")
        window.wait_for(r"x = 'saved'\n>>> ")
        cli("snapshot", shell, "point")
        window.type("x = 'later'; print('gone soon')\r")
        window.wait_for(r"^gone soon$")
        cli("restore", shell, "point")
        window.wait_for(r"x = 'saved'\n>>> \s*\Z")
        assert "gone soon" not in window.text()
        window.type("print(x)\r")
        window.wait_for(r"^saved$")


def test_a_half_typed_line_can_be_completed_after_a_restore(cli: Cli, shell: str) -> None:
    with attached(cli, shell) as window:
        window.type("read -p 'name? ' name; echo \"<$name>\"\r")
        window.wait_for(r"^name\? ")
        window.type("Ali")
        window.wait_for(r"^name\? Ali")
        cli("snapshot", shell, "point")
        window.type("x\r")
        window.wait_for(r"^<Alix>$")
        cli("restore", shell, "point")
        window.wait_for(r"^name\? Ali\s*\Z")
        window.type("ce\r")
        window.wait_for(r"^<Alice>$")


def test_the_end_of_a_full_screen_program_shows_an_attached_person_the_screen_below(
    cli: Cli, shell: str
) -> None:
    cli("send", shell, "echo stands below; vim -u NONE -N /tmp/note", "Enter")
    cli("wait-for", shell, "--text", r'"/tmp/note" \[New', "--timeout", "30")
    with attached(cli, shell) as window:
        assert "stands below" not in window.text()
        window.type(":q\r")
        window.wait_for(r"^stands below$")


def test_all_viewers_see_the_same_and_a_read_only_one_cannot_type(cli: Cli, shell: str) -> None:
    with attached(cli, shell) as one, attached(cli, shell, "--read-only") as two:
        two.type("echo never\r")
        one.type("echo seen by both\r")
        one.wait_for(r"^seen by both$")
        two.wait_for(r"^seen by both$")
        assert "never" not in one.text()
        two.type(DETACH)
        assert two.wait_until_ended() == 0


def test_the_end_of_the_shell_ends_attach_with_a_message(cli: Cli, shell: str) -> None:
    with attached(cli, shell) as window:
        window.type("exit\r")
        assert window.wait_until_ended() == 0
        assert b"The shell has ended" in window.printed
    assert cli.failure("exec", shell, "--", "true").exit_code == 125
    cli("terminal", "new", shell, "main")
    assert cli("exec", shell, "--", "echo fresh") == "fresh"


def test_detaching_restores_the_persons_terminal(cli: Cli, shell: str) -> None:
    command = (
        f"{WAYPOINT} --state-dir {cli.state_dir} attach {shell}; stty -a | head -3; echo; stty -g; echo over"
    )
    with Window(["bash", "-c", f"stty -g; {command}"]) as window:
        window.wait_for("detaches")
        window.type("printf '\\033[?1049h\\033[?25l\\033[31m'\r")
        wait_for(lambda: window.screen().is_alternate)
        window.type(DETACH)
        window.wait_for(r"^over$")
        modes = re.findall(rb"^([0-9a-f:]{50,})\r?$", window.printed, re.MULTILINE)
        assert len(modes) == 2
        assert modes[0] == modes[1]
        screen = window.screen()
        assert screen.cursor_visible
        assert not screen.is_alternate


def test_without_a_terminal_attach_is_refused_with_a_hint(cli: Cli, shell: str) -> None:
    failure = cli.failure("attach", shell)
    assert failure.exit_code == 2
    assert "waypoint screen" in failure.hint


def test_shell_asks_what_to_keep(cli: Cli) -> None:
    # In a directory with a short name, so that the prompt does not wrap a line of the window.
    command = [WAYPOINT, "--state-dir", str(cli.state_dir), "shell", "/srv", "--name", "mine"]
    with Window(command) as window:
        window.wait_for("detaches")
        window.wait_for(r"root@waypoint:.*# $")
        window.type("echo $((1+1)) $PAGER\r\x1b[A\x1b[1~: edited \r")
        window.wait_for("edited echo")
        window.wait_for("^2$")
        window.type("exit\r")
        window.wait_for(r"remove it \(r\)")
        window.type("s\n")
        assert window.wait_until_ended() == 0
    assert [c["id"] for c in cli.document("list", "mine")["checkpoints"]] == ["checkpoint-1"]
    cli("cleanup", "mine", "--force")
    with Window(command) as window:
        window.wait_for("detaches")
        window.type(DETACH)
        window.wait_for(r"remove it \(r\)")
        window.type("r\n")
        assert window.wait_until_ended() == 0
    assert cli.document("list")["sessions"] == []
