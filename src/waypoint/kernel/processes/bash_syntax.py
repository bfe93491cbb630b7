"""Ask the host's bash whether a command line is valid, without running it.

Started by hand and not through waypoint.kernel.processes.programs, because a command line imports this for every
command of the older grammar (docs/adr/0003-command-line-starts-fast.md).
"""

from __future__ import annotations

import os

__all__ = ["SyntaxCheck"]

_BASH = "/bin/bash"


class SyntaxCheck:
    """A check that runs while the caller does other things, until it asks for the ``complaint``."""

    __slots__ = ("_complaints", "_pid")

    def __init__(self, text: str) -> None:
        self._pid = 0
        self._complaints = -1
        if not os.path.exists(_BASH):
            return
        self._complaints = os.memfd_create("complaints")
        source = os.memfd_create("source")
        try:
            os.write(source, text.encode(errors="surrogateescape") + b"\n")
            os.lseek(source, 0, os.SEEK_SET)
            self._pid = os.posix_spawn(
                _BASH,
                ["bash", "-O", "extglob", "-n"],
                {"LC_ALL": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._complaints, 2),
                ],
            )
        finally:
            os.close(source)

    def complaint(self) -> str:
        """Bash's error message for the line; empty if it is valid."""
        if not self._pid:
            return ""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        message = os.pread(self._complaints, 4096, 0).decode(errors="replace")
        os.close(self._complaints)
        if os.waitstatus_to_exitcode(status) == 0:
            return ""
        return message.partition("\n")[0].removeprefix("bash: ") or "not valid bash"
