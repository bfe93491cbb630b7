"""The QEMU driver against a monitor that answers as QEMU does in moments too short to catch with a real one."""

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.backends.microvm.qemu import QemuDriver


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="qemu-"))  # short, because the path of a socket must be
    yield path
    shutil.rmtree(path)


def test_a_machine_continues_only_after_qemu_has_finished_saving(directory: Path) -> None:
    """QEMU reports the state as written a moment before it lets the machine continue, and refuses "cont" until then."""
    statuses = ["finish-migrate", "finish-migrate", "postmigrate"]
    said: list[str] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "qmp"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as lines:
                lines.write(b'{"QMP": {}}\n')
                lines.flush()
                decoder, text = json.JSONDecoder(), ""
                while data := connection.recv(4096):
                    text += data.decode()
                    message, end = decoder.raw_decode(text)
                    text = text[end:]
                    said.append(message["execute"])
                    lines.write(json.dumps(answer(message["execute"])).encode() + b"\n")
                    lines.flush()

        def answer(command: str) -> dict[str, object]:
            if command == "query-status":
                return {"return": {"status": statuses[0] if len(statuses) == 1 else statuses.pop(0)}}
            if command == "cont" and statuses[0] == "finish-migrate":
                return {"error": {"desc": "Migration is not finalized yet"}}
            return {"return": {}}

        server = threading.Thread(target=serve)
        server.start()
        QemuDriver(is_accelerated=False).resume(directory)
        server.join(30)
    assert said == ["qmp_capabilities", "query-status", "query-status", "query-status", "cont"]
