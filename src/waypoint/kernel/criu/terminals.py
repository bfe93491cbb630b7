"""Unread input and output in the PTYs of a stopped branch, moved to where CRIU saves them exactly.

CRIU reads what it finds unread in a PTY and writes it back through the line discipline: every line of
output gets a second carriage return, typed lines are echoed again, half a line is lost. So it must find the
PTYs empty. While every task is stopped we move output into the pipe from which init reads it, and take unread
input out; it is typed again, without echo, before the tasks run again. It waits in a pipe of init's, so it is
part of the checkpoint, and a killed caller loses nothing: recovery types it.

Where init keeps the descriptors of its terminals is part of the protocol (docs/shell-protocol.md).
"""

import errno
import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from waypoint.kernel.syscalls import duplicate_descriptor

__all__ = ["empty_terminals", "refill_terminals"]

TERMINALS_MAX = 8
_FIRST_FD, _FDS_EACH = 128, 8
_SPLICE_BYTES = 4096  # the line discipline never has more
_READ_BYTES = 1 << 16

# The header of what one read of a program would give: whether that is complete, and how many bytes follow.
_UNIT = struct.Struct("<?I")
_IFLAG, _LFLAG, _CC = 0, 3, 6
_IUTF8 = 0o40000
_LITERAL_NEXT, _END_OF_FILE = b"\x16", b"\x04"


@dataclass(frozen=True, slots=True)
class _Pty:
    """Our duplicates of init's descriptors."""

    master: int
    slave: int
    output_read: int
    output_write: int
    input_read: int
    input_write: int


def empty_terminals(init_pid: int) -> None:
    """Make every terminal's PTY empty; all tasks of the branch are stopped."""
    with _terminals(init_pid) as terminals:
        for pty in terminals:
            _keep_input(pty)  # first: bytes that are processed only now may still be echoed
            _keep_output(pty)


def refill_terminals(init_pid: int) -> None:
    """Type again what empty_terminals() took out. With nothing kept this does nothing."""
    with _terminals(init_pid) as terminals:
        for pty in terminals:
            units = _kept_units(pty)
            if units:
                _type_without_echo(pty, units)


@contextmanager
def _terminals(init_pid: int) -> Iterator[list[_Pty]]:
    with ExitStack() as stack:
        pidfd = os.pidfd_open(init_pid)
        stack.callback(os.close, pidfd)
        terminals = []
        for slot in range(TERMINALS_MAX):
            first = _FIRST_FD + _FDS_EACH * slot
            fds = []
            for number in range(first, first + len(_Pty.__slots__)):
                try:
                    fd = duplicate_descriptor(pidfd, number)
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise
                    break  # no terminal, or one whose shell could not be started
                stack.callback(os.close, fd)
                fds.append(fd)
            else:
                terminals.append(_Pty(*fds))
        yield terminals


def _keep_output(pty: _Pty) -> None:
    # One call moves the bytes from the PTY to the pipe: there is no moment at which we alone have them.
    while True:
        try:
            if os.splice(pty.master, pty.output_write, _SPLICE_BYTES, flags=os.SPLICE_F_NONBLOCK) == 0:
                return
        except BlockingIOError:
            if _is_ready(pty.output_write, select.POLLOUT):
                return  # the pipe has space left, so it is the PTY that is empty
            size = fcntl.fcntl(pty.output_write, fcntl.F_GETPIPE_SZ)
            fcntl.fcntl(pty.output_write, fcntl.F_SETPIPE_SZ, 2 * size)


def _keep_input(pty: _Pty) -> None:
    mode = termios.tcgetattr(pty.slave)
    _settle(pty)
    if mode[_LFLAG] & termios.ICANON:
        while (line := _read_line(pty.slave)) is not None:
            _keep_unit(pty, line, is_complete=True)
        _set_mode(pty, _changed(mode, lflag_off=termios.ICANON | termios.ECHO | termios.ISIG))
        try:
            _keep_rest(pty)
        finally:
            _set_mode(pty, mode)
    else:
        _keep_rest(pty)


def _read_line(slave: int) -> bytes | None:
    """What one read gives a program in canonical mode; empty at a typed end of file, None if nothing is there."""
    try:
        return os.read(slave, _READ_BYTES)
    except BlockingIOError:
        return None


def _keep_rest(pty: _Pty) -> None:
    while count := struct.unpack("i", fcntl.ioctl(pty.slave, termios.FIONREAD, bytes(4)))[0]:
        _keep_unit(pty, os.read(pty.slave, count), is_complete=False)
        _settle(pty)


def _keep_unit(pty: _Pty, data: bytes, *, is_complete: bool) -> None:
    os.write(pty.input_write, _UNIT.pack(is_complete, len(data)) + data)


def _kept_units(pty: _Pty) -> list[tuple[bool, bytes]]:
    kept = bytearray()
    while (piece := _read_line(pty.input_read)) is not None:
        kept += piece
    units = []
    while kept:
        is_complete, size = _UNIT.unpack_from(kept)
        units.append((is_complete, bytes(kept[_UNIT.size : _UNIT.size + size])))
        del kept[: _UNIT.size + size]
    return units


def _type_without_echo(pty: _Pty, units: list[tuple[bool, bytes]]) -> None:
    mode = termios.tcgetattr(pty.slave)
    is_canonical = bool(mode[_LFLAG] & termios.ICANON)
    off = termios.ECHO | termios.ECHONL | termios.ISIG
    _set_mode(pty, _changed(mode, lflag_off=off, literally=True))
    try:
        for is_complete, data in units:
            _type(pty, _quoted(data, is_complete) if is_canonical else data)
    finally:
        _set_mode(pty, mode)


def _type(pty: _Pty, keys: bytes) -> None:
    # What is written to the master is processed some time later, perhaps not before the echo is on again.
    for key in keys:
        fcntl.ioctl(pty.slave, termios.TIOCSTI, bytes((key,)))


def _quoted(data: bytes, is_complete: bool) -> bytes:
    """The keys that make a canonical terminal give ``data`` to one read, or begin a line with it."""
    ends_line = is_complete and data.endswith(b"\n")
    text = data[:-1] if ends_line else data
    for special in (_LITERAL_NEXT, _END_OF_FILE, b"\n"):
        text = text.replace(special, _LITERAL_NEXT + special)
    if not is_complete:
        return text
    return text + (b"\n" if ends_line else _END_OF_FILE)


def _changed(mode: list[Any], *, lflag_off: int, literally: bool = False) -> list[Any]:
    changed = [*mode[:_CC], list(mode[_CC])]
    changed[_LFLAG] &= ~lflag_off
    if literally:
        changed[_IFLAG] &= _IUTF8
        changed[_LFLAG] |= termios.IEXTEN
        characters = [b"\0"] * len(changed[_CC])
        characters[termios.VLNEXT], characters[termios.VEOF] = _LITERAL_NEXT, _END_OF_FILE
        for index in (termios.VMIN, termios.VTIME):
            characters[index] = mode[_CC][index]
        changed[_CC] = characters
    return changed


def _set_mode(pty: _Pty, mode: list[Any]) -> None:
    termios.tcsetattr(pty.slave, termios.TCSANOW, mode)


def _settle(pty: _Pty) -> None:
    """A poll that finds nothing to read makes the line discipline process what was typed."""
    _is_ready(pty.slave, select.POLLIN)


def _is_ready(fd: int, event: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))
