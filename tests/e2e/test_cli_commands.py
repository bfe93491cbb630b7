"""Commands in all their forms through the command line: isolated, detached, interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import Cli
from support.waiting import DEADLINE_S, wait_for

WAYPOINT = str(Path(sys.executable).with_name("waypoint"))
GO = "until [ -e /tmp/go ]; do sleep 0.02; done"


@contextmanager
def start(cli: Cli, *words: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Like Cli.start(), with a pipe as input; what still runs at the end of the block is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([WAYPOINT, *words], env=cli.env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(running: "subprocess.Popen[bytes]") -> bytes:
    """Return the next printed line, as soon as it is printed."""
    assert running.stdout is not None
    return running.stdout.readline()


def detach(cli: Cli, target: str, *words: str) -> str:
    number = cli("exec", target, "--detach", "--quiet", *words)
    assert number.isdigit()
    return number


def wait(cli: Cli, target: str, job: str) -> int:
    """Wait for a job that must end; return its exit code."""
    return cli.run("wait", target, job, "--timeout", str(DEADLINE_S)).exit_code


def cursor_row(cli: Cli, target: str) -> int:
    row: int = cli.document("screen", target)["cursor"]["row"]
    return row


def let_go(cli: Cli, session: str, branch: str = "main") -> None:
    """Let the commands in ``branch`` that wait in GO continue."""
    Path(f"{cli.state_dir}/sessions/{session}/{branch}/tmp/go").touch()


# -- isolated commands


def test_an_isolated_command_has_separate_outputs_and_does_not_touch_the_shell(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "cd /usr; export V=shell")
    ended = cli.run("exec", shell, "--isolated", "--", "echo out; echo err >&2; cd /; V=x; tty; exit 3")
    assert (ended.exit_code, ended.out, ended.err) == (3, b"out\nnot a tty\n", "err\n")
    assert cli("exec", shell, "--", "echo $V $PWD") == "shell /usr"
    document = json.loads(
        cli.run("--json", "exec", shell, "--isolated", "--", "echo out; echo err >&2; exit 3").out
    )
    assert document.pop("duration_ms") > 0
    assert document == {"exit_code": 3, "output": "out\n", "errors": "err\n"}


def test_an_isolated_command_reads_the_callers_input(cli: Cli, shell: str) -> None:
    data = os.urandom(1_000_000)
    with start(cli, "exec", shell, "--isolated", "--", "cat; echo over >&2") as running:
        assert running.communicate(data, timeout=DEADLINE_S) == (data, b"over\n")
    assert cli("exec", shell, "--isolated", "--", "wc -c") == "0"  # the caller has no input


def test_an_isolated_command_can_answer_before_its_input_ends(cli: Cli, shell: str) -> None:
    with start(cli, "exec", shell, "--isolated", "--", 'while read x; do echo "<$x>"; done') as running:
        assert running.stdin is not None
        for word in (b"one", b"two"):
            running.stdin.write(word + b"\n")
            running.stdin.flush()
            assert line_of(running) == b"<%s>\n" % word
        running.stdin.close()
        assert running.wait(DEADLINE_S) == 0


def test_an_isolated_command_can_have_its_own_directory_variables_and_user(
    cli: Cli, shell: str, workspace: Path
) -> None:
    options = ("--cwd", "/usr/share", "--env", "V=a b", "--env", "W=c=d", "--user", "nobody")
    assert cli("exec", shell, "--isolated", *options, "--", 'pwd; echo "$V" $W; id -un').splitlines() == [
        "/usr/share",
        "a b c=d",
        "nobody",
    ]
    assert cli("exec", shell, "--isolated", "--user", "12:34", "--", "id -u; id -g; pwd").splitlines() == [
        "12",
        "34",
        os.fspath(workspace),
    ]


def test_one_word_is_shell_text_and_several_are_one_command(cli: Cli, shell: str) -> None:
    assert cli("exec", shell, "--isolated", "--", "echo $HOME; echo 'a b'") == "/root\na b"
    assert cli("exec", shell, "--isolated", "--", "printf", "%s|", "a b", "$HOME", "*") == "a b|$HOME|*|"
    assert cli("exec", shell, "--terminal", "main", "--", "printf", "%s|", "a b", "$X", "*") == "a b|$X|*|"


def test_exec_returns_the_exit_code_of_an_isolated_command(cli: Cli, shell: str) -> None:
    for command, code in (
        ("true", 0),
        ("exit 255", 255),
        ("no-such-program", 127),
        ("kill -9 $$", 137),
        ("kill -INT $$", 130),
    ):
        assert cli.run("exec", shell, "--isolated", "--", command).exit_code == code, command


def test_an_impossible_command_is_refused_by_name(cli: Cli, shell: str) -> None:
    for options, said in (
        (["--isolated", "--", "/no/such/program", "x"], "/no/such/program: No such file"),
        (["--isolated", "--cwd", "/no/such", "--", "true"], "/no/such: No such file"),
        (["--isolated", "--user", "no-such-user", "--", "true"], "no user named 'no-such-user'"),
        (["--isolated", "--env", "V", "--", "true"], "'V' is not NAME=VALUE"),
        (["--isolated", "--terminal", "main", "--", "true"], "--isolated cannot be combined with --terminal"),
        (["--cwd", "/", "--", "true"], "--cwd needs --isolated"),
        (["--env", "V=1", "--", "true"], "--env needs --isolated"),
        (["--user", "nobody", "--", "true"], "--user needs --isolated"),
        (["--stdin", "--", "true"], "--stdin needs --isolated"),
        (["--detach", "--timeout", "3", "--", "true"], "--timeout cannot be combined with --detach"),
        (
            ["--detach", "--output-limit", "3", "--", "true"],
            "--output-limit cannot be combined with --detach",
        ),
        (["--terminal", "main", "--timeout", "0", "--", "true"], "a timeout of 0.0 s"),
    ):
        ended = cli.run("exec", shell, *options)
        # 125 as for all of exec's own failures: other codes are those of the command.
        assert (ended.exit_code, ended.out) == (125, b""), options
        assert said in ended.err
        assert "\n  hint: " in ended.err
    for limit in ("0", "-1", "much", "1.5K"):
        refused = cli.run("exec", shell, f"--output-limit={limit}", "--", "true")
        assert refused.exit_code == 2
        assert f"{limit!r} is not a number of bytes above 0" in refused.err
    assert cli("jobs", shell) == "No jobs found"


@pytest.mark.parametrize("kind", [["--isolated"], ["--terminal", "main"]])
def test_after_a_limit_of_time_or_output_the_shell_is_free_again(
    cli: Cli, shell: str, kind: list[str]
) -> None:
    cli("exec", shell, "--", "x=kept")
    late = cli.run("exec", shell, *kind, "--timeout", "5", "--", "echo begun; sleep 600; echo over")
    assert (late.exit_code, late.lines[0]) == (124, "begun")
    assert "over" not in late.lines
    assert "timed out after 5 s" in late.err

    much = cli.run("exec", shell, *kind, "--output-limit", "1K", "--", "yes")
    assert (much.exit_code, much.out) == (125, b"y\n" * 512)
    assert "more than 1024 bytes" in much.err
    error = cli.failure_document("exec", shell, *kind, "--output-limit", "1000", "--", "yes")
    assert error["code"] == "output_limit"
    assert error["output"] == "y\n" * 500

    exact = cli.run("exec", shell, *kind, "--output-limit", "100", "--", "printf '%099d\\n' 1; (exit 6)")
    assert (exact.exit_code, len(exact.out)) == (6, 100)
    assert cli("exec", shell, "--timeout", str(DEADLINE_S), "--", "echo $x") == "kept"


@pytest.mark.parametrize("kind", [["--isolated"], ["--terminal", "main"]])
def test_output_is_printed_while_the_command_runs(cli: Cli, shell: str, kind: list[str]) -> None:
    with start(cli, "exec", shell, *kind, "--", f"echo first; {GO}; echo second; (exit 5)") as running:
        assert line_of(running) == b"first\n"
        assert running.poll() is None
        let_go(cli, shell)
        assert line_of(running) == b"second\n"
        assert running.wait(DEADLINE_S) == 5


# -- jobs


def test_a_detached_command_is_a_job_in_every_output_form(cli: Cli, shell: str) -> None:
    assert cli("jobs", shell) == "No jobs found"
    printed = cli("exec", shell, "--detach", "--", "echo one; echo two; (exit 4)")
    assert printed == f"Job 1 started: waypoint wait {shell} 1"
    assert cli.document("exec", shell, "--detach", "--isolated", "--", "echo e >&2; exec sleep 600") == {
        "job": 2
    }
    assert wait(cli, shell, "1") == 4
    lines = cli("jobs", shell).splitlines()
    assert lines[:2] == ["Jobs:", "  1 terminal=main ended exit_code=4 output=10"]
    assert lines[2].startswith("  2 isolated running")
    assert cli("jobs", shell, "--quiet") == "1\n2"
    first, second = cli.document("jobs", shell)["jobs"]
    assert (first["job"], first["terminal"], first["state"], first["exit_code"]) == (1, "main", "ended", 4)
    assert (second["terminal"], second["state"], second["exit_code"]) == (None, "running", None)

    ended = cli.run("wait", shell, "1")
    assert (ended.exit_code, ended.text) == (4, "Job 1 ended with exit code 4\n")
    assert cli.run("wait", shell, "1", "--quiet").out == b""
    assert b'"exit_code": 4' in cli.run("wait", shell, "1", "--json").out
    assert cli("interrupt", shell, "2") == ""
    assert wait(cli, shell, "2") == 130


def test_the_output_of_a_job_can_be_read_again_from_any_offset(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--", "echo one; echo two")
    wait(cli, shell, job)
    for _ in range(2):
        assert cli.run("output", shell, job).out == b"one\ntwo\n"
        assert cli.run("output", shell, job, "--follow").out == b"one\ntwo\n"
    whole = {"job": int(job), "offset": 0, "next_offset": 10, "output": "one\ntwo\n", "errors": ""}
    assert cli.document("output", shell, job) == whole
    assert cli.document("output", shell, job, "--follow") == whole
    assert cli.run("output", shell, job, "--from", "5").out == b"two\n"  # the terminal wrote \r\n
    assert cli.document("output", shell, job, "--from", "10")["output"] == ""
    assert cli.run("output", shell, job, "--from", "1000").out == b""


def test_output_and_errors_of_an_isolated_job_stay_separate(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--isolated", "--cwd", "/usr", "--env", "V=v", "--", "pwd; echo $V >&2; exit 2")
    assert wait(cli, shell, job) == 2
    for follow in ([], ["--follow"]):
        ended = cli.run("output", shell, job, *follow)
        assert (ended.exit_code, ended.out, ended.err) == (0, b"/usr\n", "v\n")
    assert cli.document("output", shell, job)["errors"] == "v\n"


def test_a_running_job_can_be_followed_and_survives_its_followers(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--", f"echo first; {GO}; echo second; (exit 3)")
    with (
        start(cli, "output", shell, job, "--follow") as looker,
        start(cli, "output", shell, job, "--follow") as other,
    ):
        assert line_of(looker) == line_of(other) == b"first\n"
        looker.send_signal(signal.SIGINT)
        assert looker.wait(DEADLINE_S) == 130
        late = cli.failure("wait", shell, job, "--timeout", "0.05")
        assert (late.exit_code, late.code) == (124, "wait_timeout")
        assert f"job {job}" in late.message
        let_go(cli, shell)
        assert line_of(other) == b"second\n"
        assert other.wait(DEADLINE_S) == 0
    assert wait(cli, shell, job) == 3


def test_an_unknown_job_is_not_found_and_an_invalid_number_is_wrong_usage(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--", "true")
    missing = cli.failure("wait", shell, "99")
    assert (missing.exit_code, missing.message) == (3, "no job 99")
    for words in (
        ["output", shell, "99"],
        ["output", shell, "99", "--follow"],
        ["interrupt", shell, "99"],
        ["wait", shell, "-1"],
        ["interrupt", shell, "99999999999"],
    ):
        assert cli.run(*words).exit_code == 3, words
    for words in (
        ["output", shell, job, "--from", "-1"],
        ["output", shell, job, "--from", "x"],
        ["wait", shell, "one"],
        ["wait", shell],
        ["wait", shell, job, "--timeout", "-1"],
    ):
        assert cli.run(*words).exit_code == 2, words


def test_the_next_command_waits_for_a_job_of_the_shell_or_reports_busy(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--", f"{GO}; x=set")
    busy = cli.failure("exec", shell, "--no-wait", "--", "true")
    assert (busy.exit_code, busy.code) == (125, "busy")
    assert f"job {job}" in busy.message
    with start(cli, "exec", shell, "--", "echo $x") as waiting:
        let_go(cli, shell)
        assert line_of(waiting) == b"set\n"


def test_jobs_keep_running_in_every_branch_of_a_checkpoint(cli: Cli, shell: str) -> None:
    done = detach(cli, shell, "--isolated", "--", "echo before; exit 3")
    wait(cli, shell, done)
    running = detach(cli, shell, "--", f"echo begun; {GO}; echo went on; (exit 4)")
    aside = detach(cli, shell, "--isolated", "--", f"echo aside; {GO}; echo also >&2; exit 5")
    cli("snapshot", shell, "here")
    later = detach(cli, shell, "--isolated", "--", "true")
    cli("restore", shell, "here")
    cli("fork", shell, "here", "--id", "side")
    for branch in ("main", "side"):
        target = f"{shell}:{branch}"
        assert cli("jobs", target, "--quiet").split() == [done, running, aside]
        assert cli.run("wait", target, later).exit_code == 3  # it did not exist yet
        let_go(cli, shell, branch)
        assert [wait(cli, target, job) for job in (done, running, aside)] == [3, 4, 5]
        assert cli("output", target, running) == "begun\nwent on"
        assert cli.run("output", target, aside)[1:] == (b"aside\n", "also\n")


def test_a_follower_continues_through_a_checkpoint(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--", f"echo first; {GO}; echo second")
    with start(cli, "output", shell, job, "--follow") as follower, start(cli, "wait", shell, job) as waiter:
        assert line_of(follower) == b"first\n"
        cli("snapshot", shell)
        let_go(cli, shell)
        assert follower.communicate(timeout=DEADLINE_S) == (b"second\n", b"")
        assert waiter.wait(DEADLINE_S) == 0


# -- interrupted


def test_interrupt_ends_the_foreground_command(cli: Cli, shell: str) -> None:
    with start(cli, "exec", shell, "--", "x=kept; echo begun; sleep 600; echo not reached") as running:
        assert line_of(running) == b"begun\n"
        # If an interrupt arrives while bash starts a program, bash can forget that program.
        cli("exec", shell, "--isolated", "--", "until pgrep -x sleep; do :; done")
        assert cli("interrupt", shell) == ""
        out, _ = running.communicate(timeout=DEADLINE_S)
        assert running.returncode == 130
        assert b"not reached" not in out
    assert cli("exec", shell, "--", "echo $x") == "kept"
    row = cursor_row(cli, shell)
    assert cli.document("interrupt", shell) == {"interrupted": True}  # nothing runs, so nothing happens
    # The shell answers with a new line. Before that, the interrupt could still hit the next command.
    wait_for(lambda: cursor_row(cli, shell) > row)
    assert cli("exec", shell, "--", "echo $x") == "kept"


@pytest.mark.parametrize("kind", [[], ["--isolated"]])
def test_an_interrupt_of_the_command_line_is_passed_to_the_command(
    cli: Cli, shell: str, kind: list[str]
) -> None:
    program = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with start(cli, "exec", shell, *kind, "--", "sh", "-c", program) as running:
        assert line_of(running) == b"ready\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 9
    assert out.endswith(b"caught\n")
    assert b"Traceback" not in err
    assert cli("exec", shell, "--timeout", str(DEADLINE_S), "--", "echo free") == "free"


def test_a_second_interrupt_ends_the_command_line_itself(cli: Cli, shell: str) -> None:
    program = "trap 'echo ignored' INT; echo ready; while :; do sleep 0.05; done"
    with start(cli, "exec", shell, "--isolated", "--", program) as running:
        assert line_of(running) == b"ready\n"
        running.send_signal(signal.SIGINT)
        assert line_of(running) == b"ignored\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 130
    assert err == b"waypoint: interrupted\n"


@pytest.mark.parametrize("kind", ["", "--isolated"])
def test_closing_the_output_of_exec_ends_the_command(cli: Cli, shell: str, kind: str) -> None:
    cli("exec", shell, "--", "x=kept")
    ended = subprocess.run(
        ["bash", "-c", f"{WAYPOINT} exec {shell} {kind} -- yes | head -1; echo ${{PIPESTATUS[0]}}"],
        env=cli.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == (b"y\n130\n", b"")
    assert cli("exec", shell, "--timeout", str(DEADLINE_S), "--", "echo $x") == "kept"
    assert all(job["state"] == "ended" for job in cli.document("jobs", shell)["jobs"])


# -- the end of a shell


def test_the_end_of_a_shell_is_reported_with_the_way_to_a_new_one(cli: Cli, shell: str) -> None:
    cli("exec", shell, "--", "echo kept >/tmp/note; sleep 600 &")
    for command, how in (("exit 3", "exited with status 3"), ("kill -9 $$", "was killed by SIGKILL")):
        ended = cli.run("exec", shell, "--", f"echo bye; {command}")
        assert (ended.exit_code, ended.lines[0]) == (125, "bye")
        assert f"the shell of branch 'main' of session {shell} {how}" in ended.err
        assert "waypoint terminal new" in ended.err
        assert cli.failure("exec", shell, "--", "true").code == "shell_died"
        assert " main dead " in cli("terminal", "list", shell)
        cli("terminal", "new", shell, "main")
        assert cli("exec", shell, "--", "cat /tmp/note; echo fresh") == "kept\nfresh"


def test_a_job_that_ends_its_shell_ends_too(cli: Cli, shell: str) -> None:
    job = detach(cli, shell, "--", "echo bye; exit 7")
    ended = cli.run("wait", shell, job, "--timeout", str(DEADLINE_S))
    assert ended.exit_code == 7
    assert cli.run("output", shell, job).lines[0] == "bye"
    assert cli.failure("exec", shell, "--", "true").code == "shell_died"
