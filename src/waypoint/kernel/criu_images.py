"""The few of CRIU's image files that we read, and the one that we mend.

An image file is two magic words, then messages, each after its length.
"""

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.protobuf import decode, encode

__all__ = ["DumpStatistics", "mend_foreground_groups", "read_dump_statistics"]

_MAGIC_BYTES = 8
_LENGTH = struct.Struct("<I")

# Field numbers of CRIU's stats.proto, pstree.proto and tty.proto.
_STATS_DUMP, _FREEZING_US, _FROZEN_US = 1, 1, 2
_PROCESS_GROUP = 3
_TTY_SESSION, _TTY_FOREGROUND = 6, 7


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
    draft = terminals.with_suffix(".new")
    draft.write_bytes(magic + b"".join(_LENGTH.pack(len(entry)) + entry for entry in mended))
    os.rename(draft, terminals)


def _mended(terminal: bytes, groups: Iterable[int | bytes | None]) -> bytes:
    fields = decode(terminal)
    if not fields.get(_TTY_FOREGROUND) or fields[_TTY_FOREGROUND] in groups:
        return terminal
    # Of a field that is there twice, the last one counts.
    return terminal + encode([(_TTY_FOREGROUND, fields.get(_TTY_SESSION, 0))])


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
