"""The shell inside an instance: the errors when it cannot take a command."""

import pytest

from statefork import agent
from statefork.agent import Agent
from statefork.backends.processes.failures import explained
from statefork.errors import BackendFailed
from waypoint.errors import Busy, CommandTooLong, NotFound, ShellDied, WaypointError
from waypoint.shell.client import ConnectionLost, ShellClient, silent


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ConnectionLost(), "restore a snapshot"),
        (silent(), "restore a snapshot"),
        (ShellDied("the shell has ended"), "restore a snapshot"),
        (NotFound("terminal", "main", hint="waypoint terminal list"), "restore a snapshot"),
        (Busy("it is busy", hint="waypoint interrupt"), "wait until that has ended, or restore a snapshot"),
        (CommandTooLong("too long", hint="write it into a file"), "write it into a file"),
    ],
)
def test_hints_name_no_command_for_sessions(
    monkeypatch: pytest.MonkeyPatch, error: WaypointError, hint: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(agent, "run_command", refuse)
    with pytest.raises(BackendFailed) as failure:
        Agent("hybrid", "one", nobody).run("true", None)
    assert failure.value.hint == hint
    with pytest.raises(BackendFailed) as failure, explained("gvisor", "start"):
        raise error
    assert "waypoint restore" not in failure.value.hint


def test_a_missing_init_is_reported_with_the_remedy() -> None:
    with pytest.raises(BackendFailed, match="closed the connection") as failure:
        Agent("microvm", "one", nobody).run("true", None)
    assert failure.value.hint == "restore a snapshot"


def nobody() -> ShellClient:
    raise ConnectionLost
