"""Open a terminal: start a shell in a branch, in the way its profile says."""

from collections.abc import Mapping

from waypoint.shell.client import ShellClient
from waypoint.shell.profile import SESSION_ENV, ShellProfile
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
) -> None:
    """Start a shell; return when it has shown its first prompt. Raises InitRefused."""
    shell = profile.for_terminal(terminal)
    variables = {**SESSION_ENV, "SHELL": shell.path, **env, **shell.env}
    client.ask(
        encode_open(
            terminal,
            rows=size[0],
            columns=size[1],
            uid=0,
            gid=0,
            cwd=cwd,
            rc=shell.rc,
            run_line=shell.run_line,
            argv=shell.argv,
            env=[f"{name}={value}" for name, value in variables.items()],
        )
    )
