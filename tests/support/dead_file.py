"""A file whose server can be killed: a FUSE file system of that one file, served by a separate process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waypoint.kernel.storage.mounts import detach_all

__all__ = ["served_file"]

# Each request of the kernel begins with a header of 40 bytes: length, operation, request number, and more.
_SERVER = """
import ctypes, os, struct, sys
INIT, GETATTR, STATFS, OPEN, RELEASE, FLUSH, NO_ANSWER = 26, 3, 17, 14, 18, 25, (2, 36, 42)
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=100644,user_id=0,group_id=0,allow_other".encode()
assert ctypes.CDLL(None).mount(b"file", os.fsencode(sys.argv[1]), b"fuse", 0, options) == 0
print("ready", flush=True)
while True:
    asked = os.read(server, 1 << 17)
    _, operation, number = struct.unpack_from("=IIQ", asked)
    if operation in NO_ANSWER:
        continue
    answer = {
        INIT: struct.pack("=IIII", 7, 31, 0, 0).ljust(64, b"\\0"),
        GETATTR: struct.pack("=8Q10I", 0, 0, 1, *[0] * 8, 0o100644, 1, *[0] * 5),
        STATFS: bytes(80), OPEN: bytes(16), RELEASE: b"", FLUSH: b"",
    }.get(operation)
    error = 0 if answer is not None else -38
    os.write(server, struct.pack("=IiQ", 16 + len(answer or b""), error, number) + (answer or b""))
"""


@contextmanager
def served_file(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Serve the file ``path`` by FUSE while the block runs. Kill the server to get a file that nobody serves."""
    command = [sys.executable, "-c", _SERVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield server
        finally:
            server.kill()
            detach_all(path)
