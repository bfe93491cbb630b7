"""Act as the person at a branch's terminal: type, and read what it has shown."""

import os
import re
import time

from support.waiting import DEADLINE_S
from waypoint import Branch
from waypoint.names import MAIN
from waypoint.shell.client import ShellClient
from waypoint.shell.protocol import Reply, parse_output

__all__ = ["shown", "type_text", "wait_until_shown"]


def type_text(branch: Branch, text: str) -> None:
    with ShellClient(branch.directory.resolve()) as client:
        client.type(MAIN, text.encode())


def shown(branch: Branch) -> str:
    """Everything the terminal has shown, with its own line ends."""
    with ShellClient(branch.directory.resolve()) as client:
        frames = client.stream(MAIN)
        return b"".join(parse_output(payload)[1] for kind, payload in frames if kind == Reply.OUTPUT).decode()


def wait_until_shown(branch: Branch, pattern: str) -> str:
    """Wait until ``pattern`` is found in what the terminal has shown, and return all of it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        text = shown(branch)
        if re.search(pattern, text):
            return text
        assert time.monotonic() < deadline, f"{pattern!r} is not in {text[-500:]!r}"
        os.sched_yield()
