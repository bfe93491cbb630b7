"""A person's own terminal: a program runs on a real PTY, and the window shows what it printed."""

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from types import TracebackType

from support.waiting import DEADLINE_S
from waypoint.shell.emulator import Emulator
from waypoint.shell.rendering import render_text, searchable_text
from waypoint.shell.screen import Screen

__all__ = ["Window"]


class Window:
    """A context manager: what still runs at its end is killed."""

    def __init__(self, command: Sequence[str], *, rows: int = 24, columns: int = 80) -> None:
        self._emulator = Emulator(rows, columns, history=200)
        self.printed = b""
        self._master, slave = os.openpty()
        self._set_size(rows, columns)
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(slave)

    def __enter__(self) -> "Window":
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        os.close(self._master)  # the hangup ends what still runs
        self._process.wait(DEADLINE_S)
        self._emulator.close()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        self._set_size(rows, columns)
        self._emulator.resize(rows, columns)

    def screen(self) -> Screen:
        self._pump(0.0)
        return self._emulator.screen()

    def text(self) -> str:
        return render_text(self.screen())

    def wait_for(self, pattern: str) -> str:
        """Wait until the window shows ``pattern``; return all of its text."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            text = searchable_text(self._emulator.screen())
            if re.search(pattern, text, re.MULTILINE):
                return text
            assert time.monotonic() < deadline, f"{pattern!r} is not in:\n{text}"
            self._pump(0.2)

    def wait_until_ended(self) -> int:
        """Read the output until the program has ended; return its exit code."""
        while self._pump(DEADLINE_S):
            pass
        return self._process.wait(DEADLINE_S)

    def _pump(self, timeout_s: float) -> bool:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # EIO: nobody holds the other end any more
            return False
        self.printed += data
        self._emulator.feed(data)
        return bool(data)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
