"""What a program inside a branch can reach."""

import os
import signal
from pathlib import Path

from waypoint import Branch, Session

__all__ = ["forges", "kill_nat", "reaches", "run_python"]

_WORKLOADS = Path(__file__).parent.parent / "workloads"
# Reports the outcome as soon as it is known: a program must not have to wait for a refusal.
_REACH = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as connection:
        connection.sendall(b"hello")
        print("reached" if connection.recv(5) == b"hello" else "strange")
except TimeoutError:
    print("silence")
except OSError:
    print("refused")
"""


def run_python(branch: Branch | Session, program: str, *words: str) -> str:
    """Run a Python program inside to its end; return what it printed."""
    branch.write_file("/tmp/program.py", program.encode())
    ended = branch.exec(f"python3 /tmp/program.py {' '.join(words)}", timeout_s=60)
    assert ended.exit_code == 0, ended.output
    return ended.output.strip()


def reaches(branch: Branch | Session, host: str, port: int) -> str:
    """Connect to an echo server: ``reached`` if it answers, else ``refused`` at once, or ``silence``."""
    return run_python(branch, _REACH, host, str(port))


def forges(branch: Branch | Session, host: str, port: int) -> str:
    """Try the same with a raw frame that root builds itself: ``open`` or ``closed``."""
    return run_python(branch, (_WORKLOADS / "raw_frame.py").read_text(), host, str(port))


def kill_nat(session: Session) -> None:
    """Kill the NAT of the branch ``main``, and wait until it has ended."""
    cgroup = session.context.platform.network_cgroup(session.main.record.incarnation)
    for pid in cgroup.members():
        os.kill(pid, signal.SIGKILL)
    while cgroup.is_populated():
        os.sched_yield()
