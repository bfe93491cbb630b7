"""Two processes with an established TCP connection that exchange a counter, one step per request.

The client writes each answer into ``/tmp/count``. It steps when ``/tmp/step`` appears, and then removes that file.
Both ends check that they get the number they expect, so a lost or repeated byte ends them.
"""

import os
import socket
import struct
import time
from pathlib import Path

PORT = 7777
COUNT, STEP = Path("/tmp/count"), Path("/tmp/step")


def serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    expected = 0
    while number := connection.recv(8, socket.MSG_WAITALL):
        assert struct.unpack("!Q", number) == (expected,)
        connection.sendall(struct.pack("!Q", expected + 1))
        expected += 1


def count() -> None:
    connection = socket.create_connection(("127.0.0.1", PORT))
    number = 0
    while True:
        connection.sendall(struct.pack("!Q", number))
        (answer,) = struct.unpack("!Q", connection.recv(8, socket.MSG_WAITALL))
        assert answer == number + 1
        number = answer
        draft = COUNT.with_suffix(".draft")
        draft.write_text(str(number))
        draft.rename(COUNT)
        while not STEP.exists():
            time.sleep(0.01)
        STEP.unlink()


if __name__ == "__main__":
    opened = socket.create_server(("127.0.0.1", PORT))
    if os.fork() == 0:
        serve(opened)
    else:
        opened.close()
        count()
