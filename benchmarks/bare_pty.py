"""A command on a PTY with nothing around it: the yardstick for terminal output."""

import os
import subprocess

__all__ = ["run_on_bare_pty"]


def run_on_bare_pty(*command: str) -> int:
    """Read all that ``command`` writes to a terminal; return how many bytes that is."""
    master, slave = os.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    total = 0
    try:
        while data := os.read(master, 1 << 16):
            total += len(data)
    except OSError:  # EIO: the last process that could write has ended
        pass
    finally:
        os.close(master)
        process.wait()
    return total
