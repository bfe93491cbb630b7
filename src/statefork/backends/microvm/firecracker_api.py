"""Firecracker's API: HTTP over a unix socket, JSON both ways. Whatever is not a 2xx is a failure with its reason."""

import http.client
import json
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statefork.backends.microvm.sockets import connect_in
from statefork.errors import BackendFailed

__all__ = ["FirecrackerApi"]

ANSWER_TIMEOUT_S = 120.0  # writing a big machine's memory to disk


class FirecrackerApi:
    """The API of the Firecracker process whose socket is ``name`` in ``directory``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def put(self, path: str, body: Mapping[str, object]) -> None:
        self._request("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, object]) -> None:
        self._request("PATCH", path, body)

    def server_pid(self) -> int:
        """The pid of the process that listens. Raises OSError."""
        with self._connected() as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid: int = struct.unpack("3i", credentials)[0]
            return pid

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connect_in(self._directory, self._name, connection, ANSWER_TIMEOUT_S)
        except BaseException:
            connection.close()
            raise
        return connection

    def _request(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        text = None if body is None else json.dumps(body)
        try:
            connection = http.client.HTTPConnection("localhost", timeout=ANSWER_TIMEOUT_S)
            connection.sock = self._connected()
            try:
                connection.request(method, path, text, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                status, said = answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise BackendFailed("firecracker", f"{method} {path}", reason) from error
        if not 200 <= status < 300:
            raise BackendFailed("firecracker", f"{method} {path}", f"{_fault(said)} (HTTP status {status})")
        return json.loads(said) if said else None


def _fault(said: bytes) -> str:
    try:
        return str(json.loads(said)["fault_message"])
    except (ValueError, KeyError, TypeError):
        return said.decode(errors="replace").strip() or "no reason given"
