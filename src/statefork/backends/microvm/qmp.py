"""QEMU's monitor protocol: one command, one answer, and events in between. A JSON object on each line."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from statefork.backends.microvm.sockets import connect_in
from statefork.errors import BackendFailed

__all__ = ["Qmp"]

ANSWER_TIMEOUT_S = 60.0


class Qmp:
    """A connection to the monitor of one machine; a context manager. QEMU serves one at a time."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._events: list[dict[str, Any]] = []
        try:
            connect_in(directory, "qmp", self._socket, ANSWER_TIMEOUT_S)
            self._lines = self._socket.makefile("rb")
            self._next(time.monotonic() + ANSWER_TIMEOUT_S)  # the greeting
            self.execute("qmp_capabilities")
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise BackendFailed("microvm", "reach QEMU", _reason(error)) from error
            raise

    def __enter__(self) -> "Qmp":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def execute(self, command: str, arguments: Mapping[str, object] | None = None, *, fd: int = -1) -> Any:
        """Run a command, handing over a descriptor if one is given; return its answer. Raises BackendFailed."""
        message = json.dumps({"execute": command, "arguments": dict(arguments or {})}).encode()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        try:
            if fd < 0:
                self._socket.sendall(message)
            else:
                socket.send_fds(self._socket, [message], [fd])
            while True:
                answer = self._next(deadline)
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    raise BackendFailed("microvm", command, answer["error"].get("desc", "no reason given"))
                self._events.append(answer)
        except OSError as error:
            raise BackendFailed("microvm", command, _reason(error)) from error

    def wait_for(
        self, event: str, is_it: Callable[[Mapping[str, Any]], bool], timeout_s: float
    ) -> Mapping[str, Any]:
        """The data of the first event of that name that ``is_it`` accepts. Raises BackendFailed."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                message = self._events.pop(0) if self._events else self._next(deadline)
                if message.get("event") == event and is_it(message.get("data", {})):
                    data: Mapping[str, Any] = message.get("data", {})
                    return data
        except OSError as error:
            raise BackendFailed("microvm", f"wait for {event}", _reason(error)) from error

    def _next(self, deadline: float) -> dict[str, Any]:
        self._socket.settimeout(max(0.01, deadline - time.monotonic()))
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError("QEMU has ended")
        message: dict[str, Any] = json.loads(line)
        return message


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "QEMU does not answer"
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return "the machine has ended"
    return str(error)
