"""A process with an io_uring, which CRIU cannot save. It ends on SIGUSR1."""

import ctypes
import os
from collections.abc import Iterator

from workloads.pausing import run

SYS_IO_URING_SETUP = 425  # the same on all architectures
PARAMS_BYTES = 120
ENTRIES = 4


def ring() -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(SYS_IO_URING_SETUP, ENTRIES, ctypes.create_string_buffer(PARAMS_BYTES))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "io_uring_setup")
    yield
    os.close(fd)


if __name__ == "__main__":
    run(ring)
