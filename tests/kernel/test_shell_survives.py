"""The state of the shell and of its terminal, after a restore and in a fork."""

import hashlib
import re
import threading
from pathlib import Path

import pytest

from support.returning import return_after
from support.waiting import DEADLINE_S, delay_interrupt_until, wait_until
from waypoint import Session, Waypoint
from waypoint.errors import CommandTimedOut, ShellDied

# The command to set up, the one to spoil it, the one to check it, and its output.
SHELL_STATE = {
    "directory": ("cd /usr/share", "cd /", "echo $PWD $(/bin/pwd)", "/usr/share /usr/share\n"),
    "previous directory": ("cd /usr; cd /etc", "cd /; cd /var", "cd -", "/usr\n"),
    "directory stack": (
        "cd /usr; pushd /etc; pushd /var",
        "popd; popd; popd",
        "dirs -p; popd",
        "/var\n/etc\n/usr\n/etc /usr\n",
    ),
    "exported variable": ("export V='a  b'", "unset V", "sh -c 'echo \"$V\"'", "a  b\n"),
    "plain variable": ("v=$'two\\nlines'", "v=other", 'echo "$v"; env | grep -c ^v=', "two\nlines\n0\n"),
    "readonly variable": ("readonly r=1", "true", "(r=2) 2>/dev/null || echo $r", "1\n"),
    "array": (
        "a=(one 'two three' four); unset 'a[0]'",
        "a=()",
        "declare -p a",
        'declare -a a=([1]="two three" [2]="four")\n',
    ),
    "associative array": ("declare -A m=([k]=v)", "unset m", "echo ${m[k]} ${#m[@]}", "v 1\n"),
    "function": ("f() { echo f got $1; }", "unset -f f", "f it", "f got it\n"),
    "alias": ("alias hey='echo hey'", "unalias hey", "hey you", "hey you\n"),
    "umask": ("umask 027", "umask 0", "umask; touch /tmp/u; stat -c %a /tmp/u", "0027\n640\n"),
    "limits": ("ulimit -S -n 77", "ulimit -S -n 99", "ulimit -S -n", "77\n"),
    "options": (
        "shopt -s extglob nullglob; set -o noclobber -o pipefail",
        "shopt -u extglob nullglob; set +o noclobber +o pipefail",
        "shopt -q extglob && shopt -q nullglob && [[ -o noclobber && -o pipefail ]] && echo set",
        "set\n",
    ),
    "traps": ("trap 'echo caught' USR1", "trap - USR1", "kill -USR1 $$", "caught\n"),
    "positional parameters": ("set -- x 'y z'", "set --", 'echo $# "$2"', "2 y z\n"),
    "open descriptor": ("exec 7<<<$'first\\nsecond'; read -r _ <&7", "exec 7<&-", "cat <&7", "second\n"),
    "random seed": (
        "RANDOM=42; : $RANDOM",
        "RANDOM=1",
        "x=$RANDOM; RANDOM=42; : $RANDOM; [[ $x = $RANDOM ]] && echo same",
        "same\n",
    ),
}


@pytest.mark.parametrize(("prepare", "spoil", "ask", "answer"), SHELL_STATE.values(), ids=SHELL_STATE)
def test_the_shell_still_has_its(session: Session, prepare: str, spoil: str, ask: str, answer: str) -> None:
    session.exec(prepare)
    for branch in return_after(session, spoil):
        assert branch.exec(ask).output == answer


def test_the_shell_keeps_its_pid_last_status_and_last_background_pid(session: Session) -> None:
    before = session.exec("sleep 1000 & disown; echo $$ $!").output
    session.exec("(exit 42)")
    for branch in return_after(session, "true; sleep 1000 &"):
        assert branch.exec("echo $?").output == "42\n"
        assert branch.exec("echo $$ $!").output == before
        assert branch.exec("kill -0 $!").exit_code == 0


@pytest.mark.quick
def test_a_background_job_keeps_running_and_wait_gets_its_status(session: Session) -> None:
    session.exec("sh -c 'until [ -e /tmp/go ]; do sleep 0.02; done; exit 5' &")
    # No program in the foreground before `wait`: bash reports a job that ended meanwhile, and forgets its number.
    for branch in return_after(session, ": >/tmp/go; wait %1"):
        assert "Running" in branch.exec("jobs").output
        assert branch.exec(": >/tmp/go; wait %1", timeout_s=DEADLINE_S).exit_code == 5


# The foreground group of the terminal, as its shell sees it.
UNTIL_IN_FRONT = (
    "until read -r _ _ _ _ _ _ _ front _ </proc/$PPID/stat && [ $front = $$ ]; do sleep 0.02; done"
)


def test_a_background_job_can_be_brought_to_the_foreground(session: Session) -> None:
    session.exec(f"sh -c '{UNTIL_IN_FRONT}; test -t 0 && echo on a terminal; exit 6' &")
    for branch in return_after(session, "kill %1; wait"):
        came_back = branch.exec("fg %1", timeout_s=DEADLINE_S)
        assert came_back.exit_code == 6
        assert "on a terminal\n" in came_back.output


@pytest.mark.parametrize(
    ("stop", "resume"),
    [
        ("sh -c 'kill -TSTP $$; exit 9'", "fg"),
        ("sh -c 'kill -STOP $$; exit 9'", "fg"),
        ("sh -c 'kill -STOP $$; exit 9' & until [[ $(jobs) = *Stopped* ]]; do :; done", "bg; wait %1"),
    ],
    ids=["a terminal stop and fg", "a forced stop and fg", "a stop in the background and bg"],
)
def test_a_stopped_job_resumes_after(session: Session, stop: str, resume: str) -> None:
    session.exec(stop, timeout_s=DEADLINE_S)
    for branch in return_after(session, "kill -KILL %1; wait"):
        assert "Stopped" in branch.exec("jobs").output
        assert branch.exec(resume, timeout_s=DEADLINE_S).exit_code == 9


def test_a_job_that_ends_after_a_restore_is_reaped_and_reported(session: Session) -> None:
    session.exec("sh -c 'until [ -e /tmp/go ]; do sleep 0.02; done' &")
    for branch in return_after(session, "true"):
        branch.exec("touch /tmp/go")
        wait_until(branch, "[[ $(jobs) != *Running* ]]")
        assert branch.exec("ps -eo stat= | grep -c Z").output == "0\n"


def test_terminal_modes_and_window_size_are_restored(session: Session) -> None:
    session.exec("stty cols 97 rows 31 -echoctl -ixon intr ^G")
    before = session.exec("stty -a; tty; stty size").output
    assert before.endswith("/dev/pts/0\n31 97\n")
    for branch in return_after(session, "stty sane cols 80 rows 24"):
        assert branch.exec("stty -a; tty; stty size").output == before
        assert branch.exec("test -t 0 && test -t 1 && test -t 2 && tput cols").output == "97\n"


def test_the_foreground_program_gets_a_window_change_after_a_restore(session: Session) -> None:
    for branch in return_after(session, "true"):
        assert (
            branch.exec("bash -c 'trap \"echo resized\" WINCH; stty cols 60; stty size'").output
            == "resized\n40 60\n"
        )


def test_the_shell_leads_its_own_session_and_foreground_group(session: Session) -> None:
    for branch in return_after(session, "true"):
        assert branch.exec("[[ $(ps -o sid= -p $$) -eq $$ ]] && echo leader").output == "leader\n"
        assert "+" in branch.exec("sh -c 'ps -o stat= -p $$; :'").output


def test_a_timed_out_command_is_interrupted_and_the_shell_keeps_running(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for branch in return_after(session, "true"):
        delay_interrupt_until(monkeypatch, (branch.directory / "tmp/begun").exists)
        with pytest.raises(CommandTimedOut):
            branch.exec("kept=1; : >/tmp/begun; sleep 1000", timeout_s=1.0)
        assert branch.exec("echo $kept; pgrep -c sleep").output == "1\n0\n"


def test_heredocs_and_lines_are_run_as_written(session: Session) -> None:
    session.exec("n=4")
    written = (
        "cat <<END\n$((n * 10)) \"q\" 'q' \\$n\nEND\ncat <<'END'\n$n\nEND\nfor i in 1 2\ndo\n  echo $i\ndone"
    )
    for branch in return_after(session, "n=5"):
        assert branch.exec(written).output == "40 \"q\" 'q' $n\n$n\n1\n2\n"


@pytest.mark.parametrize(
    "text", ["echo 'open", 'echo "open', "cat <<END\nno end", "if true; then", "echo $(", "}"]
)
def test_an_unfinished_command_does_not_swallow_the_next_one(session: Session, text: str) -> None:
    session.exec("x=kept")
    session.exec(text, timeout_s=DEADLINE_S)
    assert session.exec("echo $x", timeout_s=DEADLINE_S).output == "kept\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("true", 0),
        ("false", 1),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("sh -c 'kill -9 $$'", 137),
        ("(exit 255)", 255),
        ("return 3", 3),
    ],
)
def test_the_exit_code_is_that_of(session: Session, command: str, status: int) -> None:
    assert session.exec(command).exit_code == status


def test_the_exit_of_a_shell_is_reported_and_a_restore_brings_the_shell_back(session: Session) -> None:
    session.exec("x=1")
    saved = session.snapshot()
    with pytest.raises(ShellDied, match="exited with status 3"):
        session.exec("echo last words; exit 3")
    session.restore(saved)
    assert session.exec("echo $x").output == "1\n"


def test_every_byte_of_binary_output_arrives(session: Session) -> None:
    every_byte = bytes(range(256)) + bytes(reversed(range(256))) + b"\r\n\r\r\n\n\r"
    session.exec(
        f"python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(\"{every_byte.hex()}\"))' >/tmp/bytes"
    )
    for branch in return_after(session, "rm /tmp/bytes"):
        assert branch.exec("cat /tmp/bytes").output_bytes == every_byte


def test_16_mib_of_random_output_arrive_completely(session: Session) -> None:
    session.exec("head -c 16777216 /dev/urandom >/tmp/much")
    expected = session.exec("sha256sum </tmp/much").output.split()[0]
    much = session.exec("cat /tmp/much", timeout_s=60).output_bytes
    assert len(much) == 16777216
    assert hashlib.sha256(much).hexdigest() == expected


def test_output_across_snapshots_is_complete_and_a_fork_finishes_the_command(
    session: Session, state_dir: Path
) -> None:
    pieces: list[bytes] = []
    running = threading.Event()

    def take_five() -> None:
        with Waypoint(state_dir) as own:
            assert running.wait(DEADLINE_S)
            try:
                for number in range(5):
                    own.session(session.id).snapshot(f"during-{number}")
            finally:
                own.session(session.id).exec_isolated("touch /tmp/enough")

    def collect(piece: bytes) -> None:
        pieces.append(piece)
        running.set()

    taker = threading.Thread(target=take_five)
    taker.start()
    try:
        session.exec(
            "i=0; until [[ -e /tmp/enough ]]; do echo $((++i)); done; echo $i >/tmp/finished; x=after",
            timeout_s=60,
            on_output=collect,
        )
    finally:
        taker.join()
    last = int(session.exec("cat /tmp/finished").output)
    numbers = [int(line) for line in b"".join(pieces).split()]
    assert numbers == list(range(1, last + 1))

    (fork,) = session.fork("during-2")
    fork.exec_isolated("touch /tmp/enough")
    ended = fork.exec("cat /tmp/finished; echo $x", timeout_s=60)  # waits for the running command
    assert re.fullmatch(r"\d+\nafter\n", ended.output)
