"""What every shell promises: the end of each command, its status, only its output; and the state of the shell.

docs/shells.md says in what the shells are alike and in what they differ.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.returning import return_after
from support.waiting import DEADLINE_S, delay_interrupt_until
from support.workspace import new_workspace
from waypoint import Session, Waypoint
from waypoint.errors import CommandTimedOut, NotFound, ShellDied, UsageError
from waypoint.session.commands import following
from waypoint.shell.client import ANSWER_TIMEOUT_S, ShellClient
from waypoint.shell.protocol import TerminalState

SHELLS = ("bash", "zsh", "dash", "ash")
SYNTAX_ERROR = {"bash": 2, "zsh": 126, "dash": 2, "ash": 2}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(
    shell: str, waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None
) -> Iterator[Session]:
    """A session over the host's root with that shell, removed after the test."""
    try:
        created = waypoint.create(workspace, shell=shell)
    except NotFound as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}: {error.hint}")
    yield created
    created.cleanup(force=True)


@pytest.fixture(scope="module", params=SHELLS)
def undisturbed(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[Session]:
    """A session with that shell, shared by all tests that leave the shell unchanged."""
    with Waypoint(state_dir) as opened, new_workspace() as workspace:
        created = opened.create(workspace, shell=request.param)
        yield created
        created.cleanup(force=True)


# --- status and end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("true", 0),
        ("false", 1),
        ("", 0),
        ("# nothing", 0),
        ("(exit 7)", 7),
        ("(exit 255)", 255),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("sh -c 'kill -9 $$'", 137),
        ("sh -c 'kill -TERM $$'", 143),
        ("false | true", 0),
        ("true | (exit 9)", 9),
        ("return 3", 3),
        ("false; true", 0),
        ("sleep 1000 & kill -KILL $!; wait $!", 137),
    ],
)
def test_the_exit_code_is_that_of(undisturbed: Session, command: str, status: int) -> None:
    assert undisturbed.exec(command, timeout_s=DEADLINE_S).exit_code == status


def test_the_next_command_gets_the_status_of_the_last_one(undisturbed: Session) -> None:
    for command, status in (("false", 1), ("(exit 42)", 42), ("sh -c 'kill -9 $$'", 137), ("true", 0)):
        undisturbed.exec(command)
        assert undisturbed.exec("echo $?").output == f"{status}\n"


@pytest.mark.parametrize(
    "text", ["if", "}", ")", "echo 'open", 'echo "open', "echo $(", "true\nif true; then\n", "for"]
)
def test_a_syntax_error_has_a_status_and_does_not_swallow_the_next_command(
    session: Session, shell: str, text: str
) -> None:
    session.exec("x=kept")
    assert session.exec(text, timeout_s=DEADLINE_S).exit_code == SYNTAX_ERROR[shell]
    assert session.exec("echo $? $x", timeout_s=DEADLINE_S).output == f"{SYNTAX_ERROR[shell]} kept\n"


@pytest.mark.parametrize(
    "text", [": ${unset_one:?is missing}", "readonly r=1; r=2", "set -o no-such-option", ". /no/such/file"]
)
def test_an_error_that_would_end_a_script_leaves_the_shell_alive(session: Session, text: str) -> None:
    session.exec("x=kept")
    assert session.exec(text, timeout_s=DEADLINE_S).exit_code in (1, 2, 126, 127)
    assert session.exec("echo $x", timeout_s=DEADLINE_S).output == "kept\n"


SETTINGS = (
    "set -u",
    "set -f",
    "set -C",
    "set -a",
    "set -x",
    "PS1='> '; PS2='more '; PS4='+ '",
    "unset PS1 PS2",
    "readonly PS2",
    "printf() { :; }; read() { :; }; print() { :; }",
    "alias printf=false read=false print=false",
    "IFS=0123456789",
    "exec 3>&1",
    "exec 2>/dev/null",
    "stty -echo; stty raw; stty sane",
    "PATH=",
    "trap 'true' INT TERM",
    "unset ENV; umask 777",
)
SETTINGS_OF_ONE = {
    "zsh": (
        "PROMPT='%n > ' RPROMPT='%~'",
        "precmd() { true; }; preexec() { true; }",
        "precmd_functions=() preexec_functions=()",
        "unset precmd_functions preexec_functions",
        "precmd_functions=none",
        "setopt zle promptsp promptcr",
        "setopt ksharrays shwordsplit warncreateglobal",
        "setopt ignorebraces posixbuiltins",
        "emulate sh",
        "emulate -R zsh",
        "TRAPZERR() { true; }; TRAPDEBUG() { true; }",
    ),
    "dash": ("set -o vi", "PS1='$(false)'"),
    "ash": ("set -o vi", "PS1='$(false)'"),
}


@pytest.mark.parametrize(
    ("shell", "setting"),
    [(shell, setting) for shell in SHELLS for setting in (*SETTINGS, *SETTINGS_OF_ONE.get(shell, ()))],
)
def test_commands_end_with_their_status_whatever_the_settings_of_the_shell(
    session: Session, setting: str
) -> None:
    session.exec(setting, timeout_s=DEADLINE_S)
    assert session.exec("(exit 7)", timeout_s=DEADLINE_S).exit_code == 7
    assert "7" in session.exec('echo "$?"', timeout_s=DEADLINE_S).output
    assert session.exec("true", timeout_s=DEADLINE_S).exit_code == 0


def test_under_errexit_a_failing_command_ends_the_shell_and_this_is_reported(session: Session) -> None:
    session.exec("set -e")
    assert session.exec("if false; then :; fi; echo on", timeout_s=DEADLINE_S).output == "on\n"
    with pytest.raises(ShellDied, match="exited with status 1"):
        session.exec("false", timeout_s=DEADLINE_S)


def test_the_end_of_the_shell_is_reported_and_undone_by_a_restore(session: Session) -> None:
    session.exec("x=kept; sleep 1000 &")  # the shell must not ask for confirmation because of this job
    saved = session.snapshot()
    with pytest.raises(ShellDied, match="exited with status 3") as died:
        session.exec("echo last words; exit 3", timeout_s=DEADLINE_S)
    assert b"last words" in died.value.output
    session.restore(saved)
    with pytest.raises(ShellDied, match="killed by SIGKILL"):
        session.exec("kill -9 $$", timeout_s=DEADLINE_S)
    session.restore(saved)
    assert session.exec("echo $x").output == "kept\n"


# --- interrupts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sleep 1000", "while :; do :; done", "(sleep 1000)", "sleep 1000 | cat"])
def test_an_interrupted_command_has_status_130_and_the_shell_keeps_running(
    session: Session, shell: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shell == "ash":  # a bug of busybox: an interrupt while it takes memory may lock it up (docs/shells.md)
        command = command.replace("while :", "while sleep 0.05")
    monkeypatch.setattr(following, "GRACE_S", DEADLINE_S)  # a machine may be too busy for two seconds
    delay_interrupt_until(monkeypatch, (session.directory / "tmp/begun").exists)
    with pytest.raises(CommandTimedOut) as stopped:
        session.exec(f"kept=1; : >/tmp/begun; {command}", timeout_s=1.0)
    assert "cannot be interrupted" not in str(stopped.value)
    assert session.exec("echo $? $kept", timeout_s=DEADLINE_S).output == "130 1\n"


def test_an_interrupted_command_that_replaced_the_prompt_does_not_stop_reports(
    session: Session, shell: str
) -> None:
    replace = "PS1=x precmd_functions=() preexec_functions=()" if shell == "zsh" else "PS1=x"
    with pytest.raises(CommandTimedOut):
        session.exec(f"{replace}; sleep 1000", timeout_s=0.3)
    assert session.exec("(exit 5)", timeout_s=DEADLINE_S).exit_code == 5


def test_an_interrupt_at_the_prompt_does_not_drop_the_next_command(session: Session) -> None:
    for status in range(1, 11):
        with ShellClient(session.directory.resolve()) as client:
            for _ in range(3):
                client.signal("main", signal.SIGINT)
                client.next_frame(ANSWER_TIMEOUT_S)
            client.type("main", b"true\n")  # runs after the interrupts, which could otherwise hit the command
            _wait_for_prompt(client)
        assert session.exec(f"(exit {status})", timeout_s=DEADLINE_S).exit_code == status


def test_leftover_text_after_an_interrupt_is_not_taken_for_the_end_of_the_next_command(
    session: Session,
) -> None:
    """For example the rest of a run line, which bash keeps when it is interrupted while reading it."""
    for status in range(1, 6):
        with ShellClient(session.directory.resolve()) as client:
            client.signal("main", signal.SIGINT)
            client.next_frame(ANSWER_TIMEOUT_S)
            client.type("main", b"main/cmd; __waypoint_end; }\n")
            _wait_for_prompt(client)
        assert session.exec(f"(exit {status})", timeout_s=DEADLINE_S).exit_code == status


def _wait_for_prompt(client: ShellClient) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while any(terminal.state != TerminalState.PROMPT for terminal in client.terminals()):
        assert time.monotonic() < deadline


# --- output --------------------------------------------------------------------------------------------


def test_the_output_is_only_that_of_the_command(session: Session) -> None:
    session.exec("PS1='ps1> '; PS2='ps2> '; PROMPT='prompt> '; RPROMPT='right'")
    for _ in range(30):
        assert session.exec("echo on").output == "on\n"
    assert session.exec("printf 'no line end'").output == "no line end"
    assert session.exec("true").output == ""


def test_heredocs_and_lines_are_run_as_written(session: Session) -> None:
    session.exec("n=4")
    text = "cat <<END\n$((n * 10)) \"q\" 'q' \\$n\nEND\ncat <<'END'\n$n\n\\\nEND\nfor i in 1 2\ndo\n  echo $i # so\ndone"
    assert session.exec(text).output == "40 \"q\" 'q' $n\n$n\n\\\n1\n2\n"


def test_a_command_of_one_mib_runs(session: Session) -> None:
    size = 1 << 20
    assert session.exec("# " + "x" * (size - 2), timeout_s=DEADLINE_S).exit_code == 0
    text = "x='" + "y" * (size - 40) + "'; echo ${#x}"
    assert session.exec(text, timeout_s=DEADLINE_S).output == f"{size - 40}\n"
    lines = "\n".join(f"i={number}" for number in range(50_000))
    assert session.exec(f"{lines}\necho $i", timeout_s=DEADLINE_S).output == "49999\n"


def test_no_history_contains_the_text_of_commands(session: Session) -> None:
    session.exec("true some-words-of-ours")
    session.exec("true")
    assert "some-words" not in session.exec("history; fc -l").output


def test_the_terminal_keeps_the_mode_that_programs_expect(session: Session) -> None:
    modes = session.exec("stty -a").output
    assert re.search(r"(?<!-)\bicanon\b", modes)
    assert re.search(r"(?<!-)\becho\b", modes)
    assert session.exec("test -t 0 && test -t 1 && test -t 2 && tty").output == "/dev/pts/0\n"


def test_programs_get_the_name_of_the_shell_and_nothing_of_its_hooks(session: Session, shell: str) -> None:
    environment = dict(line.split("=", 1) for line in session.exec("env").output.splitlines())
    assert Path(environment["SHELL"]).name in (shell, "sh")
    assert not {"PS1", "PS2", "RPS1", "ENV", "ZDOTDIR", "PROMPT_COMMAND"} & set(environment)
    assert not any("waypoint" in name for name in environment)
    nested = session.exec("dash -i -c 'echo nested $-'").output
    assert nested.startswith("nested ")


@pytest.mark.parametrize("mode", ["", " POSIXLY_CORRECT"])
def test_variables_of_the_caller_with_a_meaning_for_the_shell_do_no_harm(
    shell: str, waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, mode: str
) -> None:
    names = f"PS1 PS2 RPS1 ENV BASH_ENV ZDOTDIR PROMPT PROMPT_COMMAND HISTFILE TMOUT{mode}"
    own = dict.fromkeys(names.split(), "echo harm")
    session = waypoint.create(workspace, shell=shell, env={**own, "SHELL": "/bin/mine"})
    try:
        assert session.exec("(exit 7)").exit_code == 7
        assert session.exec("echo $? $SHELL").output == "7 /bin/mine\n"
        exported = session.exec("env").output
        assert "__waypoint" not in exported
        assert "/.waypoint/main" not in exported
        assert ("POSIXLY_CORRECT" in exported) == bool(mode)
    finally:
        session.cleanup(force=True)


# --- state, also of the saved and copied shell ---------------------------------------------------------


STATE = {
    "directory": ("cd /usr/share", "cd /", "echo $PWD $(/bin/pwd)", "/usr/share /usr/share\n"),
    "previous directory": ("cd /usr; cd /etc", "cd /; cd /var", "cd - >/dev/null; pwd", "/usr\n"),
    "exported variable": ("export V='a  b'", "unset V", "sh -c 'echo \"$V\"'", "a  b\n"),
    "plain variable": ("v='two\nlines'", "v=other", 'echo "$v"; env | grep -c ^v=', "two\nlines\n0\n"),
    "function": ("f() { echo f got $1; }", "unset -f f", "f it", "f got it\n"),
    "alias": ("alias hey='echo hey'", "unalias hey", "hey you", "hey you\n"),
    "umask": ("umask 027", "umask 0", "touch /tmp/u; stat -c %a /tmp/u", "640\n"),
    "options": ("set -C", "set +C", "echo a >/tmp/o; (echo b >/tmp/o) 2>/dev/null; cat /tmp/o", "a\n"),
    "positional parameters": ("set -- x 'y z'", "set --", 'echo $# "$2"', "2 y z\n"),
    "trap": ("trap 'echo caught' USR1", "trap - USR1", "kill -USR1 $$", "caught\n"),
    "open descriptor": (
        "printf 'first\\nsecond\\n' >/tmp/two; exec 7</tmp/two; read -r _ <&7",
        "exec 7<&-",
        "cat <&7",
        "second\n",
    ),
    "last status": ("(exit 42)", "true", "echo $?", "42\n"),
}


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "bash"])  # test_shell_survives.py
@pytest.mark.parametrize(("prepare", "spoil", "ask", "answer"), STATE.values(), ids=STATE)
def test_the_shell_still_has_its(session: Session, prepare: str, spoil: str, ask: str, answer: str) -> None:
    session.exec(prepare)
    for branch in return_after(session, spoil):
        assert branch.exec(ask).output == answer


def test_a_background_job_keeps_running_and_wait_gets_its_status(session: Session) -> None:
    session.exec("sh -c 'until [ -e /tmp/go ]; do sleep 0.02; done; exit 5' &")
    pid = session.exec("echo $!").output
    for branch in return_after(session, "touch /tmp/go; wait"):
        assert branch.exec("echo $!; kill -0 $!").output == pid
        assert "unning" in branch.exec("jobs").output
        assert branch.exec("touch /tmp/go; wait $!", timeout_s=DEADLINE_S).exit_code == 5


def test_a_job_can_be_stopped_resumed_and_ended_by_its_name(session: Session) -> None:
    session.exec("sleep 1000 &")
    session.exec("sh -c 'kill -STOP $$; exit 9'", timeout_s=DEADLINE_S)
    for branch in return_after(session, "kill %sleep"):
        assert branch.exec("fg %sh", timeout_s=DEADLINE_S).exit_code == 9
        assert branch.exec("kill %sleep; wait $!", timeout_s=DEADLINE_S).exit_code == 143


def test_a_running_command_continues_in_a_fork(session: Session) -> None:
    session.start("until [ -e /tmp/go ]; do sleep 0.02; done; x=after; (exit 6)")
    (fork,) = session.fork(session.snapshot())
    for branch in (fork, session.main):
        (branch.directory / "tmp/go").touch()
        with ShellClient(branch.directory.resolve()) as client:
            _wait_for_prompt(client)
        assert branch.exec("echo $? $x", timeout_s=DEADLINE_S).output == "6 after\n"


# --- the choice ----------------------------------------------------------------------------------------


def test_an_unknown_or_missing_shell_is_refused_before_anything_is_made(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None
) -> None:
    with pytest.raises(UsageError, match="unknown shell 'fish'"):
        waypoint.create(workspace, shell="fish")
    with pytest.raises(NotFound, match="/no/zsh"):
        waypoint.create(workspace, shell="/no/zsh")


@pytest.fixture
def tiny_base(tmp_path: Path) -> Path:
    """A root file system with only busybox and the link /bin/sh."""
    busybox = shutil.which("busybox")
    if busybox is None:
        if os.environ.get("CI"):
            pytest.fail("busybox is not installed")
        pytest.skip("busybox is not installed")
    root = tmp_path / "tiny"
    for directory in ("bin", "etc", "tmp", "dev", "proc", "sys", "run", "root"):
        (root / directory).mkdir(parents=True)
    shutil.copy2(busybox, root / "bin/busybox")
    (root / "bin/sh").symlink_to("/bin/busybox")
    listed = subprocess.run(["ldd", busybox], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"(/\S+) \(0x", listed):
        (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, root / library.lstrip("/"))
    return root


def test_a_base_without_bash_uses_the_shell_it_has(
    waypoint: Waypoint, tiny_base: Path, leaves_nothing_behind: None
) -> None:
    session = waypoint.create(base=tiny_base)
    try:
        assert session.exec("echo $SHELL; cd /tmp; x=kept; (exit 7)").output == "/bin/sh\n"
        assert session.exec("echo $? $PWD $x").output == "7 /tmp kept\n"
        session.exec("busybox sleep 1000 &")
        for branch in return_after(session, "cd /; x=; kill $!"):
            assert branch.exec("echo $PWD $x; kill -0 $!").output == "/tmp kept\n"
            with pytest.raises(CommandTimedOut):
                branch.exec("busybox sleep 1000", timeout_s=0.3)
            assert branch.exec("echo $?").output == "130\n"
    finally:
        session.cleanup(force=True)
