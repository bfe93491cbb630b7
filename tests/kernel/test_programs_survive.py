"""Programs people use, in the middle of their work, after a restore and in several forks at once."""

import shutil
from collections.abc import Callable

import pytest

from support.returning import return_after
from support.waiting import wait_until
from support.workload import install_workloads
from waypoint import Branch, Session

FORKS = 3


@pytest.fixture
def tmux(session: Session) -> Session:
    """A session with a tmux server in it whose first window is called ``t``."""
    _need("tmux")
    session.exec("unset TMUX; tmux -f /dev/null new-session -d -s t -x 100 -y 30 'exec bash --norc'")
    wait_until(session, "tmux has-session -t t")
    return session


def test_a_python_prompt_in_tmux_keeps_its_variables_and_its_half_typed_line(tmux: Session) -> None:
    _type(tmux, "python3 -q", "Enter")
    _wait_for_screen(tmux, ">>>")
    _type(tmux, "import threading; lock = threading.Lock(); kept = [n * n for n in range(5)]", "Enter")
    _type(tmux, "def double(n):", "Enter", "    return 2 * n", "Enter", "Enter")
    _type(tmux, "print('sum', sum(kept)")
    # printed by the line editor, not by the terminal's echo
    _wait_for_screen(tmux, ">>> print('sum', sum(kept)")
    for branch in return_after(tmux, "tmux kill-server"):
        _type(branch, ", double(21))", "Enter")
        _wait_for_screen(branch, "sum 30 42")
        _type(branch, "kept.append(1000); lock.acquire(timeout=1); print('now', sum(kept))", "Enter")
        _wait_for_screen(branch, "now 1030")


def test_vim_in_tmux_keeps_its_unsaved_text_mode_and_undo_history(tmux: Session) -> None:
    _need("vim")
    tmux.exec("echo saved >/tmp/note; cd /tmp")
    _type(tmux, "vim -u NONE -N -n /tmp/note", "Enter")
    _wait_for_screen(tmux, '"/tmp/note"')
    _type(tmux, "yyp", "onever written", "Escape", "A and still")
    _wait_for_screen(tmux, "never written and still")
    for branch in return_after(tmux, "tmux kill-server"):
        assert branch.exec("cat /tmp/note").output == "saved\n"
        _type(branch, f" typing in {branch.name}", "Escape", ":w", "Enter")  # vim is still in insert mode
        wait_until(branch, "grep -q typing /tmp/note")
        assert (
            branch.exec("cat /tmp/note").output
            == f"saved\nsaved\nnever written and still typing in {branch.name}\n"
        )
        _type(branch, "uuu:wq", "Enter")
        wait_until(branch, "! pgrep -x vim")
        assert branch.exec("cat /tmp/note").output == "saved\n"


def test_a_file_server_answers_in_every_fork_at_the_same_port_with_its_own_files(session: Session) -> None:
    session.exec("mkdir /tmp/site; cd /tmp/site; echo common >index.html")
    session.exec("python3 -m http.server 8000 >/dev/null 2>&1 &")
    _wait_for_port(session, 8000)
    branches = _branch_out(session, lambda branch: branch.exec(f"echo {branch.name} >index.html"))
    for branch in branches:
        assert _get(branch, 8000) == f"{branch.name}\n"
        assert "http.server" in branch.exec("jobs").output


def test_redis_keeps_its_keys_and_connections_in_every_fork(session: Session) -> None:
    _need("redis-server", "redis-cli")
    session.exec("cd /tmp; redis-server --port 6379 --save '' --daemonize yes >/dev/null")
    wait_until(session, "redis-cli ping >/dev/null 2>&1")
    session.exec("redis-cli set kept before; for i in 1 2 3; do redis-cli incr n; done")
    session.exec("redis-cli subscribe news >/tmp/news 2>&1 &")
    wait_until(session, "grep -q subscribe /tmp/news")
    branches = _branch_out(
        session, lambda branch: branch.exec(f"redis-cli set who {branch.name}; redis-cli incr n")
    )
    for branch in branches:
        assert branch.exec("redis-cli --raw mget kept who n").output.split() == ["before", branch.name, "4"]
        assert branch.exec(f"redis-cli --raw publish news from-{branch.name}").output == "1\n"
        wait_until(branch, f"grep -q from-{branch.name} /tmp/news")


NODE_SERVER = """
let hits = 0, told = 'nobody', ticks = 0;
setInterval(() => ticks++, 5);
require('http').createServer((request, response) => {
  if (request.url.startsWith('/tell/')) told = request.url.slice(6);
  if (request.url === '/ticks') return response.end(String(ticks));
  if (request.url === '/favicon.ico') return response.end();
  response.end(`${++hits} ${told}\\n`);
}).listen(3000, '127.0.0.1');
"""


def test_a_node_server_keeps_its_variables_and_timers_in_every_fork(session: Session) -> None:
    node = _need("node")
    session.exec(f"cat >/tmp/server.js <<'END'\n{NODE_SERVER}END")
    session.exec(f"{node} /tmp/server.js &")
    _wait_for_port(session, 3000)
    assert [_get(session.main, 3000), _get(session.main, 3000)] == ["1 nobody\n", "2 nobody\n"]
    branches = _branch_out(session, lambda branch: _get(branch, 3000, f"/tell/{branch.name}"))
    for branch in branches:
        assert _get(branch, 3000) == f"4 {branch.name}\n"
        ticks = int(_get(branch, 3000, "/ticks"))
        wait_until(branch, f"[ $(curl -s localhost:3000/ticks) -gt {ticks + 10} ]")


def test_a_tcp_connection_inside_the_session_continues_in_every_fork(session: Session) -> None:
    install_workloads(session)
    session.exec("python3 -m workloads.connection 2>/tmp/errors &")
    _wait_for_count(session.main, 1)
    _step(session.main, 2)
    steps = {branch.name: 3 + number for number, branch in enumerate(_branch_out(session, lambda _: None))}
    for branch in session.branches():
        for number in range(3, steps[branch.name] + 1):
            _step(branch, number)
    for branch in session.branches():
        assert branch.exec("cat /tmp/count").output == str(steps[branch.name])
        assert (
            branch.exec("cat /tmp/errors; ss -Htn state established '( dport = :7777 )' | wc -l").output
            == "1\n"
        )


@pytest.mark.quick
def test_all_of_them_survive_a_second_checkpoint_made_in_a_fork(session: Session) -> None:
    """In each restore CRIU could lose something that the next dump needs."""
    _need("redis-server", "redis-cli", "tmux")
    install_workloads(session)
    session.exec("tmux -f /dev/null new-session -d -s t -x 100 -y 30 'exec bash --norc'")
    session.exec("cd /tmp; redis-server --port 6379 --save '' --daemonize yes >/dev/null")
    session.exec("python3 -m workloads.connection &")
    _wait_for_count(session.main, 1)
    wait_until(session, "redis-cli ping >/dev/null 2>&1")
    branch = session.main
    for number in range(2, 5):
        _step(branch, number)
        branch.exec("redis-cli incr n")
        _type(branch, f"x=${{x}}{number}", "Enter")
        (branch,) = session.fork(branch)
    _step(branch, 5)
    assert branch.exec("redis-cli --raw get n").output == "3\n"
    _type(branch, "echo x is $x", "Enter")
    _wait_for_screen(branch, "x is 234")


def _need(*programs: str) -> str:
    """Check that the programs are installed, as by ``make test``; return the path of the last one."""
    for program in programs:
        path = shutil.which(program)
        assert path is not None, f"{program} is not installed"
    return path or ""


def _branch_out(session: Session, diverge: Callable[[Branch], object]) -> list[Branch]:
    """Return the session and three forks of it, all running, after they have diverged."""
    branches = [session.main, *session.fork(session.snapshot(), n=FORKS)]
    for branch in branches:
        diverge(branch)
    return branches


def _type(branch: Branch | Session, *keys: str) -> None:
    for key in keys:
        literal = "" if key in ("Enter", "Escape") else "-l "
        quoted = key.replace("'", "'\\''")
        branch.exec(f"tmux send-keys -t t {literal}-- '{quoted}'")


def _wait_for_screen(branch: Branch | Session, text: str) -> None:
    quoted = text.replace("'", "'\\''")
    wait_until(branch, f"tmux capture-pane -p -t t | grep -qF -- '{quoted}'")


def _wait_for_port(branch: Branch | Session, port: int) -> None:
    wait_until(branch, f"curl -so /dev/null localhost:{port}/favicon.ico")


def _get(branch: Branch, port: int, path: str = "/") -> str:
    return branch.exec(f"curl -s localhost:{port}{path}").output


def _wait_for_count(branch: Branch, number: int) -> None:
    wait_until(branch, f'[ "$(cat /tmp/count 2>/dev/null)" = {number} ]')


def _step(branch: Branch, number: int) -> None:
    branch.exec("touch /tmp/step")
    _wait_for_count(branch, number)


def test_processes_of_another_user_are_saved_with_their_limits(session: Session) -> None:
    session.start_isolated("ulimit -S -n 77; exec sleep 1000", user="nobody")
    wait_until(session, "pgrep -x sleep >/dev/null")
    look = "ps -o user= -C sleep; awk '/open files/ { print $4 }' /proc/$(pgrep -x sleep)/limits"
    for branch in return_after(session, "pkill -x sleep"):
        assert branch.exec(look).output == "nobody\n77\n"


IN_POLL = """\
import ctypes, os
wake = os.open("/tmp/wake", os.O_RDWR)
libc = ctypes.CDLL(None)
asked = ctypes.c_uint64(wake | 1 << 32)  # POLLIN
said = libc.poll(ctypes.byref(asked), 1, -1)
open("/tmp/said", "w").write(f"{said}\\n")
"""


def test_a_program_that_waits_in_poll_keeps_waiting(session: Session) -> None:
    session.write_file("/tmp/in_poll.py", IN_POLL)
    session.exec("mkfifo /tmp/wake; python3 -S /tmp/in_poll.py & waits=$!")
    wait_until(session, "grep -Eq '^(7|73) ' /proc/$waits/syscall")  # poll; some machines have only ppoll
    for branch in return_after(session, "kill $waits"):
        branch.exec("echo >/tmp/wake; wait $waits")
        assert branch.exec("cat /tmp/said").output == "1\n"


def test_find_and_du_in_the_middle_of_a_walk_finish_it(session: Session) -> None:
    """They compare the device numbers of directories that they have seen with those they find on the way back."""
    session.exec(f"cat >/tmp/walk <<'END'\n{WALK}END")
    session.exec("(bash /tmp/walk &)")
    wait_until(session, "[ -s /tmp/found ] && ps -C du -o stat= | grep -q S")  # asleep: its pipe is full
    for branch in return_after(session, "pkill find; pkill du"):
        branch.exec("touch /tmp/go")
        wait_until(branch, "[ -s /tmp/find-ended ] && [ -s /tmp/du-ended ]")
        assert branch.exec("cat /tmp/find-ended /tmp/du-ended /tmp/errors").output == "0\n0\n"
        assert branch.exec("find tree | diff - /tmp/found; du -a tree | diff - /tmp/sums").output == ""


# Names so long that a pipe cannot hold the paths of the tree.
WALK = """\
name=$(printf 'x%.0s' {1..120})
for d in {1..40}; do mkdir -p tree/$name$d/$name/$name; touch tree/$name$d/{,$name/,$name/$name/}{y,z}; done
wait_here() { while [ ! -e /tmp/go ]; do sleep 0.01; done; }
export -f wait_here
(find tree -exec bash -c 'echo $1; wait_here' - {} ';' >/tmp/found 2>>/tmp/errors; echo $? >/tmp/find-ended) &
(set -o pipefail; du -a tree 2>>/tmp/errors | { wait_here; cat; } >/tmp/sums; echo $? >/tmp/du-ended) &
"""


def test_tail_follows_a_file_by_its_name_without_reading_it_again(session: Session) -> None:
    session.exec(
        "echo old >/tmp/log; (tail -n +1 -F -s 0.1 --max-unchanged-stats=1 /tmp/log >/tmp/followed 2>&1 &)"
    )
    wait_until(session, "grep -q old /tmp/followed")
    for branch in return_after(session, "pkill tail"):
        branch.exec("echo new >>/tmp/log")
        wait_until(branch, "grep -q new /tmp/followed")
        branch.exec("mv /tmp/log /tmp/log.1; echo rotated >/tmp/log")
        wait_until(branch, "grep -q rotated /tmp/followed")
        followed = branch.exec("grep -v '^tail: ' /tmp/followed").output
        assert followed == "old\nnew\nrotated\n"
        assert "replaced" not in branch.exec("head -n 2 /tmp/followed").output
