"""The few of CRIU's image files that we read, and the one that we mend.

An image file is two magic words, then messages, each after its length.
"""

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.protobuf import decode, encode

__all__ = ["DumpStatistics", "mend_controlling_terminals", "mend_foreground_groups", "read_dump_statistics"]

_MAGIC_BYTES = 8
_LENGTH = struct.Struct("<I")

# Field numbers of CRIU's stats.proto, pstree.proto and tty.proto.
_STATS_DUMP, _FREEZING_US, _FROZEN_US = 1, 1, 2
_PROCESS_GROUP = 3
_TTY_SESSION, _TTY_FOREGROUND = 6, 7
# Of fdinfo.proto and regfile.proto.
_FILE_TYPE, _FILE_ID, _FILE_REGULAR, _FILE_TTY = 1, 2, 3, 19
_REGULAR_NAME, _REGULAR_MOUNT, _REGULAR_MODE = 6, 7, 10
_OF_TERMINAL, _OPENED_AS = 2, 6
_CONTROLLING = b"/dev/tty"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpStatistics:
    """What CRIU measured. The pause is from the first task stopped to all running again."""

    pause_ms: float


def read_dump_statistics(path: Path) -> DumpStatistics:
    _, messages = _read(path)
    entry = decode(messages[0]).get(_STATS_DUMP, b"")
    dump = decode(entry) if isinstance(entry, bytes) else {}
    pause_us = int(dump.get(_FREEZING_US, 0)) + int(dump.get(_FROZEN_US, 0))
    return DumpStatistics(pause_ms=pause_us / 1000)


def mend_controlling_terminals(images: Path) -> None:
    """Let descriptors of /dev/tty be opened by the name of the terminal that they lead to.

    At a restore they are opened before their process has a controlling terminal.
    """
    magic, entries = _read(images / "files.img")
    if not any(_CONTROLLING in entry for entry in entries):
        return
    files = [decode(entry) for entry in entries]
    regular = {fields[_FILE_ID]: _part(fields, _FILE_REGULAR) for fields in files if _FILE_REGULAR in fields}
    opened = [_part(fields, _FILE_TTY) for fields in files if _FILE_TTY in fields]
    by_name = {
        tty[_OF_TERMINAL]: regular[tty[_OPENED_AS]]
        for tty in opened
        if regular[tty[_OPENED_AS]][_REGULAR_NAME] != _CONTROLLING
    }
    proper = {tty[_OPENED_AS]: by_name[tty[_OF_TERMINAL]] for tty in opened if tty[_OF_TERMINAL] in by_name}
    mended = [
        _renamed(entry, fields, proper[fields[_FILE_ID]]) if fields[_FILE_ID] in proper else entry
        for entry, fields in zip(entries, files, strict=True)
    ]
    _write(images / "files.img", magic, mended)


def _renamed(entry: bytes, file: dict[int, int | bytes], like: dict[int, int | bytes]) -> bytes:
    regular = file[_FILE_REGULAR]
    if not isinstance(regular, bytes) or decode(regular)[_REGULAR_NAME] != _CONTROLLING:
        return entry
    # Of a field that is there twice, the last one counts.
    regular += encode([(field, like[field]) for field in (_REGULAR_NAME, _REGULAR_MOUNT, _REGULAR_MODE)])
    return encode([(_FILE_TYPE, file[_FILE_TYPE]), (_FILE_ID, file[_FILE_ID]), (_FILE_REGULAR, regular)])


def _part(fields: dict[int, int | bytes], number: int) -> dict[int, int | bytes]:
    part = fields[number]
    return decode(part) if isinstance(part, bytes) else {}


def mend_foreground_groups(images: Path) -> None:
    """Let no terminal's foreground be a process group that is gone; CRIU could not restore that.

    Between the end of a program and the moment at which its shell takes the terminal back, the foreground
    group has no process: one in ten checkpoints of a shell that runs short commands has it so. The shell,
    the leader of the terminal's session, is about to become the foreground; here it already is.
    """
    terminals = images / "tty-info.img"
    if not terminals.exists():
        return
    _, processes = _read(images / "pstree.img")
    groups = {decode(process).get(_PROCESS_GROUP) for process in processes}
    magic, entries = _read(terminals)
    mended = [_mended(entry, groups) for entry in entries]
    if mended == entries:
        return
    _write(terminals, magic, mended)


def _mended(terminal: bytes, groups: Iterable[int | bytes | None]) -> bytes:
    fields = decode(terminal)
    if not fields.get(_TTY_FOREGROUND) or fields[_TTY_FOREGROUND] in groups:
        return terminal
    # Of a field that is there twice, the last one counts.
    return terminal + encode([(_TTY_FOREGROUND, fields.get(_TTY_SESSION, 0))])


def _write(path: Path, magic: bytes, messages: list[bytes]) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(magic + b"".join(_LENGTH.pack(len(message)) + message for message in messages))
    os.rename(draft, path)


def _read(path: Path) -> tuple[bytes, list[bytes]]:
    raw = path.read_bytes()
    messages = []
    at = _MAGIC_BYTES
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        messages.append(raw[at : at + length])
        at += length
    return raw[:_MAGIC_BYTES], messages
