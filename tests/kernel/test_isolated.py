"""Isolated commands: independent of the shell and of each other, with output exact to the byte."""

import hashlib
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.waiting import DEADLINE_S, delay_interrupt_until, wait_until
from waypoint import CommandResult, Session
from waypoint.errors import BranchReplaced, CommandTimedOut, NotFound, OutputLimitExceeded, ShellError


def test_output_and_errors_are_separate_and_every_byte_is_kept(session: Session) -> None:
    result = session.exec_isolated(r"printf 'a\r\n\377\0z'; echo bad >&2; exit 7")
    assert (result.exit_code, result.output_bytes, result.error_bytes) == (7, b"a\r\n\xff\0z", b"bad\n")


def test_the_shell_and_an_isolated_command_do_not_affect_each_other(session: Session) -> None:
    session.exec("cd /usr; export V=shell; x=1")
    result = session.exec_isolated("pwd; echo ${V-none}; cd /; export V=isolated; tty")
    assert result.output == f"{session.record.workspace}\nnone\nnot a tty\n"
    assert session.exec("pwd; echo $V $x $?").output == "/usr\nshell 1 0\n"


def test_a_list_of_words_is_a_program_and_text_is_for_a_shell(session: Session) -> None:
    assert session.exec_isolated(["printf", "%s|", "a b", "$HOME", "*"]).output == "a b|$HOME|*|"
    assert session.exec_isolated("echo $HOME").output == "/root\n"


@pytest.mark.parametrize(
    ("command", "code"), [("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_exit_codes_are_exact(session: Session, command: str, code: int) -> None:
    assert session.exec_isolated(command).exit_code == code


def test_directory_variables_and_user_can_be_chosen(session: Session) -> None:
    result = session.exec_isolated(
        'pwd; echo "$V"; id -un; echo $HOME', cwd="/usr/share", env={"V": "a b"}, user="nobody"
    )
    assert result.output == "/usr/share\na b\nnobody\n/nonexistent\n"
    assert session.exec_isolated("id -u; id -g", user="1234:99").output == "1234\n99\n"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"command": ["/no/such/program"]}, ShellError, "No such file"),
        ({"command": "true", "cwd": "/no/such"}, ShellError, "/no/such"),
        ({"command": "true", "user": "no-such-user"}, NotFound, "no-such-user"),
    ],
)
def test_what_cannot_be_started_is_refused_by_name(
    session: Session, arguments: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        session.exec_isolated(**arguments)  # type: ignore[arg-type]
    assert session.exec_isolated("true").exit_code == 0


def test_the_input_is_bytes_or_a_file_and_ends(session: Session) -> None:
    data = os.urandom(3_000_000)
    assert session.exec_isolated("cat", stdin=data).output_bytes == data
    with io.BytesIO() as _, open("/etc/services", "rb") as file:
        assert session.exec_isolated("wc -c", stdin=file).output.strip() == str(
            os.stat("/etc/services").st_size
        )
    assert session.exec_isolated("cat").output == ""


def test_a_command_that_does_not_read_its_input_is_not_blocked(session: Session) -> None:
    assert session.exec_isolated("exec <&-; echo done", stdin=b"x" * 1_000_000).output == "done\n"
    assert session.exec_isolated("head -c 3", stdin=b"y" * 1_000_000).output == "yyy"


def test_isolated_commands_run_while_the_shell_is_busy_and_many_at_once(session: Session) -> None:
    busy = session.start("until [ -e /tmp/go ]; do sleep 0.02; done")
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: session.exec_isolated(f"echo {n}; echo e{n} >&2"), range(16)))
    assert [(result.output, result.errors) for result in results] == [
        (f"{n}\n", f"e{n}\n") for n in range(16)
    ]
    session.exec_isolated("touch /tmp/go")
    assert busy.wait(DEADLINE_S).exit_code == 0


def test_a_timeout_ends_the_command_and_everything_it_started(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_interrupt_until(monkeypatch, lambda: session.exec_isolated("pgrep -xc sleep").output == "2\n")
    with pytest.raises(CommandTimedOut) as raised:
        session.exec_isolated("echo begun; trap '' INT; sleep 1000 & sleep 1000", timeout_s=1.0)
    assert raised.value.output == b"begun\n"
    wait_until(session, "! pgrep -x sleep >/dev/null")


def test_too_much_output_ends_the_command(session: Session) -> None:
    with pytest.raises(OutputLimitExceeded) as raised:
        session.exec_isolated("yes", output_limit=100_000)
    assert raised.value.output == (b"y\n" * 50_000)
    with pytest.raises(OutputLimitExceeded) as raised:
        session.exec("yes", output_limit=100_000)
    assert raised.value.output == (b"y\n" * 50_000)
    assert session.exec("echo free").output == "free\n"


def test_a_grandchild_that_keeps_the_pipe_open_does_not_delay_the_end(session: Session) -> None:
    assert session.exec_isolated("sleep 1000 & echo done").output == "done\n"
    session.exec("pkill -x sleep")


def test_an_isolated_command_continues_through_checkpoints_without_losing_a_byte(session: Session) -> None:
    data = os.urandom(4_000_000)
    results: list[CommandResult] = []
    # tee writes the same bytes to both outputs, so that all three streams are in use at the checkpoints
    command = threading.Thread(
        target=lambda: results.append(session.exec_isolated("tee /dev/stderr", stdin=data))
    )
    command.start()
    for _ in range(5):
        session.snapshot()
    command.join(DEADLINE_S)
    expected = hashlib.sha256(data).hexdigest()
    assert hashlib.sha256(results[0].output_bytes).hexdigest() == expected
    assert hashlib.sha256(results[0].error_bytes).hexdigest() == expected


def test_a_restore_ends_the_command_and_its_caller_gets_that_reason(session: Session) -> None:
    point = session.snapshot()
    failures: list[Exception] = []

    def run() -> None:
        try:
            session.exec_isolated("touch /tmp/begun; sleep 1000")
        except BranchReplaced as error:
            failures.append(error)

    command = threading.Thread(target=run)
    command.start()
    wait_until(session, "[ -e /tmp/begun ]")
    session.restore(point)
    command.join(DEADLINE_S)
    assert "restored" in str(failures[0])
