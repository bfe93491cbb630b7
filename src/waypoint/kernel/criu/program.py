"""CRIU on this host: how it is started, and what it knows of the kernel."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from waypoint.kernel.processes.programs import CLEAN_ENV, Popen, run_tool, spawn

__all__ = ["Criu", "bind_options"]

CHECK_TIMEOUT_S = 60.0

_PRIVATE_RUN = "WAYPOINT_PRIVATE_RUN"  # native/preload/roots.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Criu:
    """How to start CRIU on this host.

    ``launcher`` is our static helper, which enters namespaces for it; ``preload`` is loaded into it
    (native/preload); ``kdat`` holds what CRIU found out about this kernel, so that it does not probe it at
    every start.
    """

    command: tuple[str, ...]
    launcher: Path
    preload: Path
    kdat: Path

    def is_warm(self) -> bool:
        """Whether what CRIU found out about this kernel is stored; a reboot makes it worthless."""
        return self.kdat.exists()

    def warm(self) -> None:
        """Let CRIU probe the kernel once and keep the result; without it every start costs ~65 ms more."""
        for stale in self.kdat.parent.glob(f"*{self.kdat.suffix}"):
            stale.unlink(missing_ok=True)
        enter = (os.fspath(self.launcher), "enter", "--net", "new", "--save-kdat", os.fspath(self.kdat), "--")
        run_tool((*enter, *self.command, "check"), timeout_s=CHECK_TIMEOUT_S)

    def start_worker(
        self,
        socket_fd: int,
        *,
        enter: Sequence[str],
        in_own_mounts: bool,
        env: Mapping[str, str],
        hold: Sequence[int],
        out: IO[bytes],
    ) -> "Popen[bytes]":
        """Start a process that serves one request on ``socket_fd``.

        ``enter`` are words for our launcher: which namespaces and cgroups it works in. The cached kernel facts need a
        mount namespace of its own (``in_own_mounts``); a tree of the host can be saved only without one.
        """
        kdat = ("--kdat", os.fspath(self.kdat)) if in_own_mounts else ()
        environment = {**CLEAN_ENV, "LD_PRELOAD": os.fspath(self.preload), **env}
        if in_own_mounts:
            environment[_PRIVATE_RUN] = "1"
        return spawn(
            (
                *(os.fspath(self.launcher), "enter", *enter, *kdat, "--"),
                *(*self.command, "swrk", str(socket_fd)),
            ),
            stdout=out,
            stderr=out,
            env=environment,
            pass_fds=(socket_fd, *hold),
        )


def bind_options(binds: Sequence[tuple[Path, Path]]) -> list[str]:
    """Words for our launcher: make bind mounts that only the program it starts can see."""
    words: list[str] = []
    for source, target in binds:
        words += ["--bind", os.fspath(source), "--to", os.fspath(target)]
    return words
