"""Start a branch through our static helper, which reports the process that is the init of the branch."""

import os
from collections.abc import Sequence

from waypoint.errors import LaunchFailed, ToolFailed
from waypoint.kernel.processes.programs import run_tool

__all__ = ["start_branch"]

LAUNCH_TIMEOUT_S = 30.0


def start_branch(command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> int:
    """Run ``command``, which ends with the helper's ``branch`` and its options; return the host pid of the init."""
    report, write_end = os.pipe()
    try:
        try:
            run_tool(
                (*command, "--report", str(write_end)),
                timeout_s=LAUNCH_TIMEOUT_S,
                pass_fds=(write_end, *pass_fds),
            )
        except ToolFailed as error:
            os.set_blocking(report, False)
            raise LaunchFailed(f"cannot start the branch: {_read(report) or error}") from error
        return int(_read(report).removeprefix("ok "))
    finally:
        os.close(report)
        os.close(write_end)


def _read(fd: int) -> str:
    try:
        return os.read(fd, 4096).decode(errors="replace").strip()
    except BlockingIOError:
        return ""
