"""The verb exec: any text goes in, all output comes out unchanged, and the exit code is the command's."""

import json
import os
import random
from pathlib import Path

import pytest

from support.command_line import Cli
from support.waiting import DEADLINE_S


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("true", 0),
        ("false", 1),
        ("(exit 7)", 7),
        ("no-such-program", 127),
        ("kill -INT $$", 130),
        ("bash -c 'kill -INT $$'", 130),
        ("bash -c 'kill -KILL $$'", 137),
        ("bash -c 'kill -TERM $$'", 143),
    ],
)
def test_exec_returns_the_exit_code_of_the_command(
    cli: Cli, shell: str, command: str, exit_code: int
) -> None:
    assert cli.run("exec", shell, "--", command).exit_code == exit_code
    ended = cli.run("exec", shell, "--json", "--", command)
    assert (ended.exit_code, b'"exit_code": %d,' % exit_code in ended.out) == (exit_code, True)


def test_every_command_runs_in_the_same_shell(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "cd /etc; export X=exported; y=plain; f() { echo function $1; }; sleep 600 &")
    cli("exec", shell, "--", "alias said='echo alias'; umask 027")
    assert cli("exec", shell, "--", "echo $PWD $X $y; f called; umask; jobs -r | wc -l") == (
        "/etc exported plain\nfunction called\n0027\n1"
    )
    assert cli("exec", shell, "--", "said so") == "alias so"


def test_exec_prints_three_forms(cli: Cli, shell: str) -> None:
    assert cli("exec", shell, "--", "echo said") == "said"
    assert cli("exec", shell, "--quiet", "--", "echo said") == "said"
    document = cli.document("exec", shell, "--", "echo said")
    assert document.pop("duration_ms") > 0
    assert document == {"exit_code": 0, "output": "said\n"}


def test_heredocs_and_text_of_many_lines_are_one_command(cli: Cli, shell: str) -> None:
    text = """cat <<END
first of $PWD
  END of nothing
END
for i in 1 2; do
    echo "line $i"
done
cat <<'END'
$PWD "as it is" \\
END"""
    workspace = cli("exec", shell, "--", "pwd")
    assert cli("exec", shell, "--", text) == (
        f'first of {workspace}\n  END of nothing\nline 1\nline 2\n$PWD "as it is" \\'
    )


@pytest.mark.parametrize(
    "text", ["echo 'open", 'echo "open', "echo $(open", "cat <<END\nopen", "if true; then", "echo )"]
)
def test_unbalanced_text_is_an_error_and_the_shell_keeps_running(cli: Cli, shell: str, text: str) -> None:
    cli("exec", shell, "--", "x=kept")
    ended = cli.run("exec", shell, "--timeout", "20", "--", text)
    assert ended.exit_code != 124
    assert b"bash: " in ended.out, ended
    assert cli("exec", shell, "--", "echo $x") == "kept"


def test_several_words_are_one_command_and_keep_their_spaces(cli: Cli, shell: str) -> None:
    words = ["two  spaces", "$HOME", "*", "", "it's", '"', "a\nb", "--json", "--"]
    ended = cli.run("exec", shell, "--", "printf", "<%s>\\n", *words)
    assert ended.text == "".join(f"<{word}>\n" for word in words)


def test_any_bytes_come_out_unchanged(cli: Cli, shell: str, workspace: Path) -> None:
    data = bytes(range(256)) + b"\r\n\n\r\r\n\x04\x1a\x03" + random.Random(4).randbytes(1 << 18) + b"\r"
    (workspace / "data").write_bytes(data)
    assert cli.run("exec", shell, "--", "cat data").out == data


def test_16_mib_of_output_arrive_completely(cli: Cli, shell: str) -> None:
    size = 16 << 20
    ended = cli.run("exec", shell, "--", f"yes 0123456789abcdef | head -c {size}; (exit 5)")
    assert ended.out == (b"0123456789abcdef\n" * (size // 17 + 1))[:size]
    assert ended.exit_code == 5


def test_exec_prints_output_while_the_command_runs(cli: Cli, shell: str, workspace: Path) -> None:
    command = "echo first; until [ -e go ]; do sleep 0.02; done; echo second"
    with cli.start("exec", shell, "--", command) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"first\n"
        assert running.poll() is None
        Path(f"{cli.state_dir}/sessions/{shell}/main{workspace}/go").touch()
        assert running.stdout.read() == b"second\n"
    assert running.returncode == 0


def test_a_command_that_times_out_is_ended_and_the_shell_answers(
    cli: Cli, shell: str, workspace: Path
) -> None:
    cli("exec", shell, "--", "x=kept")
    other = cli("init", os.fspath(workspace), "--quiet").partition(",")[0]
    command = "echo before; sleep 600; echo after"
    with cli.start("--json", "exec", other, "--timeout", "5", "--", command) as beside:
        ended = cli.run("exec", shell, "--timeout", "5", "--", command)
        printed, _ = beside.communicate(timeout=DEADLINE_S)
    assert (ended.exit_code, ended.lines[0]) == (124, "before")
    assert "after" not in ended.lines
    assert "timed out after 5 s" in ended.err
    assert cli("exec", shell, "--", "echo $x; jobs") == "kept"
    document = json.loads(printed)["error"]
    assert (beside.returncode, document["code"], document["output"]) == (124, "timeout", "before\n\n")
    assert "the shell is free" in document["hint"]


def test_the_exit_of_a_shell_is_reported_and_a_restore_brings_it_back(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "x=kept")
    cli("snapshot", shell, "before")
    ended = cli.run("exec", shell, "--", "echo bye; exit 3")
    assert ended.exit_code == 125
    assert ended.lines[0] == "bye"
    assert f"the shell of branch 'main' of session {shell} exited with status 3" in ended.err
    later = cli.failure("exec", shell, "--", "echo hello")
    assert (later.exit_code, later.code) == (125, "shell_died")
    assert f"the shell of branch 'main' of session {shell} has ended" in later.message
    assert "restore a checkpoint" in later.hint
    cli("restore", shell, "before")
    assert cli("exec", shell, "--", "echo $x") == "kept"


def test_a_session_keeps_running_after_its_command_line_has_ended(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "(while :; do date +%N >/tmp/tick; sleep 0.02; done) & echo $! >/tmp/pid")
    cli("exec", shell, "--", "rm /tmp/tick; until [ -s /tmp/tick ]; do sleep 0.02; done")
    assert cli("exec", shell, "--", "kill -0 $(cat /tmp/pid) && echo alive") == "alive"


def test_the_callers_environment_variables_stay_outside(cli: Cli, shell: str) -> None:
    cli.env["SECRET_OF_CALLER"] = "hidden"
    assert cli("exec", shell, "--", "echo [$SECRET_OF_CALLER]") == "[]"
    assert os.fspath(cli.state_dir) not in cli("exec", shell, "--", "env")
