"""Open a terminal: start a shell in a branch, as its profile says."""

from collections.abc import Mapping, Sequence

from waypoint.shell.client import ShellClient
from waypoint.shell.profile import ShellProfile
from waypoint.shell.protocol import encode_open

__all__ = ["DEFAULT_SIZE", "WindowSize", "open_terminal"]

WindowSize = tuple[int, int]
"""Rows and columns."""

DEFAULT_SIZE: WindowSize = (40, 120)


def open_terminal(
    client: ShellClient,
    terminal: str,
    profile: ShellProfile,
    *,
    size: WindowSize,
    cwd: str,
    env: Mapping[str, str],
    uid: int = 0,
    gid: int = 0,
    groups: Sequence[int] = (),
) -> None:
    """Start a shell; return when it has shown its first prompt. Raises InitRefused."""
    shell = profile.for_terminal(terminal)
    client.ask(
        encode_open(
            terminal,
            rows=size[0],
            columns=size[1],
            uid=uid,
            gid=gid,
            groups=groups,
            cwd=cwd,
            rc=shell.rc,
            run_line=shell.run_line,
            argv=shell.argv,
            env=[f"{name}={value}" for name, value in shell.variables(env).items()],
        )
    )
