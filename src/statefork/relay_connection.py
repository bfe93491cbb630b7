"""A connection to the init of an instance through a program that carries it: ``… exec … init relay``."""

import socket
import tempfile

from waypoint.errors import Broken
from waypoint.kernel.processes.programs import TimeoutExpired, spawn
from waypoint.shell.client import ConnectionLost, ShellClient

__all__ = ["RelayedClient"]

START_TIMEOUT_S = 60.0  # the program has to start before init can answer
END_TIMEOUT_S = 10.0


class RelayedClient(ShellClient):
    """Closing it waits until the program has ended: nothing of it is left inside when a checkpoint is taken."""

    hello_timeout_s = START_TIMEOUT_S

    def __init__(self, command: tuple[str, ...]) -> None:
        self._reason = ""
        self._has_ended = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        ours, theirs = socket.socketpair()
        try:
            self._relay = spawn(command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._errors)
        except BaseException:
            ours.close()
            self._errors.close()
            raise
        finally:
            theirs.close()
        try:
            super().__init__(ours)
        except ConnectionLost as error:
            raise Broken(self._reason or "its init cannot be reached") from error

    def close(self) -> None:
        super().close()
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._relay.wait(END_TIMEOUT_S)
        except TimeoutExpired:  # it carries nothing any more
            self._relay.kill()
            self._relay.wait()
        self._errors.seek(0)
        self._reason = self._errors.read().decode(errors="replace").strip()
        self._errors.close()
