"""Holds memory that cannot be compressed, and sends its digest to who connects: ``memory_hog.py MB PORT [FILE]``."""

import hashlib
import os
import socket
import sys


def main() -> None:
    held = bytearray()
    for _ in range(int(sys.argv[1])):
        held += os.urandom(1 << 20)
    with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as server:
        if len(sys.argv) > 3:
            open(sys.argv[3], "w").close()  # says that it listens
        while True:
            peer, _ = server.accept()
            with peer:
                peer.sendall(hashlib.sha256(held).hexdigest().encode())


if __name__ == "__main__":
    main()
