"""A process with threads that adds its own system call filter to that of the branch."""

import ctypes
import os
import struct
import threading
from collections.abc import Iterator

from workloads.pausing import run

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 38, 22
SECCOMP_MODE_FILTER = 2
LOAD_ARGUMENT, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # EPERM
MARK = 0x12345678  # any call with this as its first argument is refused


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def filtered() -> Iterator[None]:
    """Every call whose first argument is MARK is refused, before the checkpoint and after it."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in (
            (LOAD_ARGUMENT, 0, 0, 16),
            (JUMP_IF_EQUAL, 0, 1, MARK),
            (RETURN, 0, 0, REFUSE),
            (RETURN, 0, 0, ALLOW),
        )
    )
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(4, code))) == 0
    go_on = threading.Event()
    answers: list[str] = []

    def ask_later() -> None:
        go_on.wait()
        answers.append(_mark())

    threads = [threading.Thread(target=ask_later) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert _mark() == "Operation not permitted"
    yield
    go_on.set()
    for thread in threads:
        thread.join()
    assert [_mark(), *answers] == ["Operation not permitted"] * 4, answers


def _mark() -> str:
    try:
        os.close(MARK)
    except OSError as error:
        return str(error.strerror)
    return "allowed"


if __name__ == "__main__":
    run(filtered)
