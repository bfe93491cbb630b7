"""The few of CRIU's image files that we read, and those that we repair.

An image file is two magic words, then messages, each after its length.
"""

import os
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from waypoint.kernel.criu.protobuf import decode, decode_all, encode
from waypoint.kernel.network.in_flight import Endpoint

__all__ = [
    "INOTIFIES_MAX",
    "DumpStatistics",
    "PosixLock",
    "TakenOut",
    "UnixConnection",
    "add_posix_locks",
    "bound_ports",
    "forget_sizes_below",
    "mark_unix_connections",
    "number_inotifies",
    "repair_controlling_terminals",
    "repair_foreign_terminals",
    "repair_foreground_groups",
    "read_dump_statistics",
    "read_pids",
    "read_posix_locks",
    "take_out_connections",
    "terminals_of_init",
    "unix_connections",
]

_MAGIC_BYTES = 8
_LENGTH = struct.Struct("<I")

# Field numbers of CRIU's stats.proto, pstree.proto and tty.proto.
_STATS_DUMP, _FREEZING_US, _FROZEN_US = 1, 1, 2
_PROCESS_PID, _PROCESS_GROUP = 1, 3
_TTY_ID, _TTY_SESSION, _TTY_FOREGROUND = 1, 6, 7
_MASTER = 1  # the last bit of a terminal's id; the others are its number below /dev/pts
# Of core.proto (the ids of what processes share) and fdinfo.proto.
_DESCRIPTORS, _DESCRIPTOR_FILE, _DESCRIPTOR_NUMBER = 2, 1, 4
# Of fdinfo.proto and regfile.proto.
_FILE_TYPE, _FILE_ID, _FILE_REGULAR, _FILE_TTY = 1, 2, 3, 19
_REGULAR_NAME, _REGULAR_MOUNT, _REGULAR_SIZE, _REGULAR_MODE = 6, 7, 8, 10
# Of mm.proto and vma.proto.
_MAPPING, _MAPPED_FILE = 14, 4
# Of tty.proto: the terminal of an open file, and the regular file that it was opened as.
_OPEN_TERMINAL, _OPENED_AS = 2, 6
_CONTROLLING = b"/dev/tty"
# Of fsnotify.proto. The flags of inotify_init1() are all lower; native/preload/watches_set.c takes the number out again.
_FILE_INOTIFY, _INOTIFY_FLAGS, _NUMBER_SHIFT = 13, 2, 20
INOTIFIES_MAX = (1 << 32 - _NUMBER_SHIFT) - 1
# Of file-lock.proto, and how an image of locks begins.
_LOCKS_MAGIC = struct.pack("<II", 0x54564319, 0x54323616)
_LOCK_KIND, _LOCK_TYPE, _LOCK_PID, _LOCK_FD, _LOCK_START, _LOCK_LENGTH, _POSIX = 1, 2, 3, 4, 5, 6, 1
# Of sk-unix.proto. A type has no higher bits; native/preload/unix_peers.c takes them out again.
_FILE_UNIX, _UNIX_INODE, _UNIX_TYPE, _UNIX_PEER, _UNIX_NAME, _PEER_SHIFT = 16, 2, 3, 8, 11, 20
_DATAGRAM = 2
# Of sk-inet.proto.
_FILE_SOCKET, _SOCKET_STATE, _SOCKET_PORT, _SOCKET_PEER_PORT = 4, 6, 7, 8
_SOCKET_FAMILY, _SOCKET_FLAGS, _SOCKET_ADDRESS, _SOCKET_PEER_ADDRESS, _CLOSED = 3, 9, 11, 12, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpStatistics:
    """What CRIU measured. The pause is from the first task stopped to all running again."""

    pause_ms: float


class PosixLock(NamedTuple):
    """A lock of fcntl() that a process has, by the number of one of its descriptors; a length of 0 is to the end."""

    pid: int
    fd: int
    type: int
    start: int
    length: int


class UnixConnection(NamedTuple):
    """The inodes of two connected unix sockets; of a socketpair, either of them is the client."""

    server: int
    client: int


class TakenOut(NamedTuple):
    """A socket without its connection: one of its descriptors, its flags, and its peer as a struct sockaddr."""

    pid: int
    fd: int
    flags: int
    peer: bytes


def read_dump_statistics(path: Path) -> DumpStatistics:
    _, messages = _read(path)
    entry = decode(messages[0]).get(_STATS_DUMP, b"")
    dump = decode(entry) if isinstance(entry, bytes) else {}
    pause_us = int(dump.get(_FREEZING_US, 0)) + int(dump.get(_FROZEN_US, 0))
    return DumpStatistics(pause_ms=pause_us / 1000)


def bound_ports(images: Path) -> set[int]:
    """The ports at which saved sockets wait: TCP listeners, and UDP sockets without a peer."""
    _, entries = _read(images / "files.img")
    sockets = [_submessage(fields, _FILE_SOCKET) for fields in map(decode, entries) if _FILE_SOCKET in fields]
    return {
        int(port)
        for fields in sockets
        if (port := fields.get(_SOCKET_PORT, 0)) and not fields.get(_SOCKET_PEER_PORT)
    }


def take_out_connections(images: Path, connections: Collection[tuple[Endpoint, Endpoint]]) -> list[TakenOut]:
    """Let these sockets, given by their own address and their peer's, be restored without their connections."""
    if not connections:
        return []
    taken: dict[int, TakenOut] = {}
    magic, entries = _read(images / "files.img")
    for at, entry in enumerate(entries):
        file = decode(entry)
        socket = file.get(_FILE_SOCKET, b"")
        assert isinstance(socket, bytes)
        fields = list(decode_all(socket))
        own = _endpoint(fields, _SOCKET_ADDRESS, _SOCKET_PORT)
        peer = _endpoint(fields, _SOCKET_PEER_ADDRESS, _SOCKET_PEER_PORT)
        if (own, peer) not in connections:
            continue
        # Of a field that occurs twice, the last one counts.
        file[_FILE_SOCKET] = socket + encode([(_SOCKET_STATE, _CLOSED), (_SOCKET_PEER_PORT, 0)])
        entries[at] = encode(file.items())
        known = dict(fields)
        flags, family = int(known[_SOCKET_FLAGS]), int(known[_SOCKET_FAMILY])
        taken[int(file[_FILE_ID])] = TakenOut(0, 0, flags, peer.socket_address(family))
    _write(images / "files.img", magic, entries)
    return [
        taken.pop(file)._replace(pid=pid, fd=fd) for pid, fd, file in _descriptors(images) if file in taken
    ]


def _descriptors(images: Path) -> Iterator[tuple[int, int, int]]:
    """Each saved descriptor: the process, the number, and the id of its file."""
    for pid in read_pids(images):
        ids = images / f"ids-{pid}.img"
        if ids.exists():  # a process that is dead but not reaped has none
            (shared,) = _read(ids)[1]
            for message in _read(images / f"fdinfo-{int(decode(shared)[_DESCRIPTORS])}.img")[1]:
                fields = decode(message)
                yield pid, int(fields[_DESCRIPTOR_NUMBER]), int(fields[_DESCRIPTOR_FILE])


def _endpoint(fields: Iterable[tuple[int, int | bytes]], address: int, port: int) -> Endpoint:
    host = b"".join(int(value).to_bytes(4, sys.byteorder) for number, value in fields if number == address)
    return Endpoint.parse(host, int(dict(fields).get(port, 0)))


def unix_connections(images: Path) -> list[UnixConnection]:
    """The connections between two saved unix sockets."""
    sockets = {
        int(fields[_UNIX_INODE]): fields
        for file in map(decode, _read(images / "files.img")[1])
        if _FILE_UNIX in file and (fields := _submessage(file, _FILE_UNIX))[_UNIX_TYPE] != _DATAGRAM
    }
    return [
        UnixConnection(inode, peer)
        for inode, fields in sockets.items()
        if (peer := int(fields[_UNIX_PEER])) in sockets
        and sockets[peer][_UNIX_PEER] == inode
        # An accepted socket has the name of the listener.
        and (bool(fields[_UNIX_NAME]), inode) > (bool(sockets[peer][_UNIX_NAME]), peer)
    ]


def mark_unix_connections(images: Path, marks: Mapping[UnixConnection, int]) -> None:
    """Put the number of each connection into the types of its sockets, and let CRIU restore it in the client's process.

    It does so in a process that has the socket which comes last.
    """
    magic, entries = _read(images / "files.img")
    places: dict[int, int] = {}
    for at, file in enumerate(map(decode, entries)):
        if _FILE_UNIX in file:
            places[int(_submessage(file, _FILE_UNIX)[_UNIX_INODE])] = at
    for connection, number in marks.items():
        for inode in connection if number else ():
            file = decode(entries[places[inode]])
            fields = _submessage(file, _FILE_UNIX)
            fields[_UNIX_TYPE] = int(fields[_UNIX_TYPE]) | number << _PEER_SHIFT
            file[_FILE_UNIX] = encode(fields.items())
            entries[places[inode]] = encode(file.items())
        server, client = places[connection.server], places[connection.client]
        if server > client:
            entries[server], entries[client] = entries[client], entries[server]
    _write(images / "files.img", magic, entries)


def read_pids(images: Path) -> list[int]:
    """The pids of the processes that were saved."""
    _, messages = _read(images / "pstree.img")
    return [int(decode(message)[_PROCESS_PID]) for message in messages]


def read_posix_locks(images: Path) -> list[PosixLock]:
    """The POSIX locks that were saved."""
    locks = images / "filelocks.img"
    if not locks.exists():
        return []
    return [
        PosixLock(
            *(
                int(fields.get(number, 0))
                for number in (_LOCK_PID, _LOCK_FD, _LOCK_TYPE, _LOCK_START, _LOCK_LENGTH)
            )
        )
        for fields in map(decode, _read(locks)[1])
        if int(fields[_LOCK_KIND]) & _POSIX
    ]


def add_posix_locks(images: Path, locks: Iterable[PosixLock]) -> None:
    path = images / "filelocks.img"
    magic, messages = _read(path) if path.exists() else (_LOCKS_MAGIC, [])
    messages += [
        encode(
            (
                (_LOCK_KIND, _POSIX),
                (_LOCK_TYPE, lock.type),
                (_LOCK_PID, lock.pid),
                (_LOCK_FD, lock.fd),
                (_LOCK_START, lock.start),
                (_LOCK_LENGTH, lock.length),
            )
        )
        for lock in locks
    ]
    _write(path, magic, messages)


def terminals_of_init(images: Path) -> str:
    """The numbers of the terminals whose master process 1 holds, each with the session it controls or 0.

    In the form that native/preload/terminals.c reads: ``0=2,1=57``.
    """
    terminals = images / "tty-info.img"
    if not terminals.exists():
        return ""
    _, [shared] = _read(images / "ids-1.img")
    _, descriptors = _read(images / f"fdinfo-{int(decode(shared)[_DESCRIPTORS])}.img")
    held = {decode(descriptor)[_DESCRIPTOR_FILE] for descriptor in descriptors}
    files = [fields for fields in map(decode, _read(images / "files.img")[1]) if _FILE_TTY in fields]
    opened = {
        int(_submessage(fields, _FILE_TTY).get(_OPEN_TERMINAL, 0))
        for fields in files
        if fields[_FILE_ID] in held
    }
    sessions: dict[int, int] = {}
    for fields in map(decode, _read(terminals)[1]):
        number = int(fields.get(_TTY_ID, 0)) >> 1
        if (number << 1 | _MASTER) in opened:
            sessions[number] = sessions.get(number, 0) or int(fields.get(_TTY_SESSION, 0))
    return ",".join(f"{number}={session}" for number, session in sorted(sessions.items()))


def repair_controlling_terminals(images: Path) -> None:
    """Replace the name /dev/tty of open files by that of the terminal it stands for.

    A restore opens the files before their process has a controlling terminal.
    """
    magic, entries = _read(images / "files.img")
    if not any(_CONTROLLING in entry for entry in entries):
        return
    files = [decode(entry) for entry in entries]
    regular = {
        fields[_FILE_ID]: _submessage(fields, _FILE_REGULAR) for fields in files if _FILE_REGULAR in fields
    }
    opened = [_submessage(fields, _FILE_TTY) for fields in files if _FILE_TTY in fields]
    by_name = {
        tty[_OPEN_TERMINAL]: regular[tty[_OPENED_AS]]
        for tty in opened
        if regular[tty[_OPENED_AS]][_REGULAR_NAME] != _CONTROLLING
    }
    proper = {
        tty[_OPENED_AS]: by_name[tty[_OPEN_TERMINAL]] for tty in opened if tty[_OPEN_TERMINAL] in by_name
    }
    repaired = [
        _with_name_of_terminal(entry, fields, proper[fields[_FILE_ID]])
        if fields[_FILE_ID] in proper
        else entry
        for entry, fields in zip(entries, files, strict=True)
    ]
    _write(images / "files.img", magic, repaired)


def forget_sizes_below(images: Path, directories: Iterable[str]) -> None:
    """Allow open files below these directories to have any size when they are restored.

    Otherwise CRIU refuses one whose size has changed. Files that are mapped keep their size: memory and file
    belong together.
    """
    parents = tuple(os.fsencode(directory) for directory in directories)
    magic, entries = _read(images / "files.img")
    mapped = _mapped_files(images)
    repaired = []
    for entry in entries:
        file = decode(entry)
        regular = _submessage(file, _FILE_REGULAR) if _FILE_REGULAR in file else {}
        if file[_FILE_ID] not in mapped and _is_below(regular.get(_REGULAR_NAME), parents):
            regular.pop(_REGULAR_SIZE, None)
            file[_FILE_REGULAR] = encode(regular.items())
            entry = encode(file.items())
        repaired.append(entry)
    if repaired != entries:
        _write(images / "files.img", magic, repaired)


def number_inotifies(images: Path) -> int:
    """Put its number, from 1 on in the order in which they were saved, into the flags of each inotify; return how many.

    There are at most INOTIFIES_MAX.
    """
    magic, entries = _read(images / "files.img")
    numbered = 0
    for at, entry in enumerate(entries):
        file = decode(entry)
        if _FILE_INOTIFY not in file:
            continue
        numbered += 1
        inotify = _submessage(file, _FILE_INOTIFY)
        inotify[_INOTIFY_FLAGS] = int(inotify[_INOTIFY_FLAGS]) | numbered << _NUMBER_SHIFT
        file[_FILE_INOTIFY] = encode(inotify.items())
        entries[at] = encode(file.items())
    if numbered:
        _write(images / "files.img", magic, entries)
    return numbered


def _is_below(name: int | bytes | None, directories: Iterable[bytes]) -> bool:
    return isinstance(name, bytes) and any(
        name == directory or name.startswith(directory + b"/") for directory in directories
    )


def _mapped_files(images: Path) -> set[int | bytes]:
    """The ids of the files that processes have mapped."""
    return {
        decode(mapping).get(_MAPPED_FILE, 0)
        for path in images.glob("mm-*.img")
        for message in _read(path)[1]
        for number, mapping in decode_all(message)
        if number == _MAPPING and isinstance(mapping, bytes)
    }


def _with_name_of_terminal(
    entry: bytes, file: dict[int, int | bytes], terminal: dict[int, int | bytes]
) -> bytes:
    regular = file[_FILE_REGULAR]
    if not isinstance(regular, bytes) or decode(regular)[_REGULAR_NAME] != _CONTROLLING:
        return entry
    # Of a field that occurs twice, the last one counts.
    regular += encode([(field, terminal[field]) for field in (_REGULAR_NAME, _REGULAR_MOUNT, _REGULAR_MODE)])
    return encode([(_FILE_TYPE, file[_FILE_TYPE]), (_FILE_ID, file[_FILE_ID]), (_FILE_REGULAR, regular)])


def _submessage(fields: dict[int, int | bytes], number: int) -> dict[int, int | bytes]:
    message = fields[number]
    return decode(message) if isinstance(message, bytes) else {}


def repair_foreground_groups(images: Path) -> None:
    """Replace a terminal's foreground process group that no longer exists; CRIU could not restore that.

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
    repaired = [_with_living_foreground(entry, groups) for entry in entries]
    if repaired == entries:
        return
    _write(terminals, magic, repaired)


def repair_foreign_terminals(images: Path) -> None:
    """Make a tree restorable that was saved without its session leader, or at a bad moment. Can be repeated."""
    repair_foreground_groups(images)
    _detach_terminals(images)


def _detach_terminals(images: Path) -> None:
    """Detach terminals from sessions whose leader was not saved: CRIU would look for the leader in vain."""
    terminals = images / "tty-info.img"
    if not terminals.exists():
        return
    leaders = {0, *read_pids(images)}  # 0: the terminal has no session
    magic, entries = _read(terminals)
    no_session = encode([(_TTY_SESSION, 0), (_TTY_FOREGROUND, 0)])
    repaired = [
        entry if decode(entry).get(_TTY_SESSION, 0) in leaders else entry + no_session  # the last one counts
        for entry in entries
    ]
    if repaired != entries:
        _write(terminals, magic, repaired)


def _with_living_foreground(terminal: bytes, groups: Iterable[int | bytes | None]) -> bytes:
    fields = decode(terminal)
    if not fields.get(_TTY_FOREGROUND) or fields[_TTY_FOREGROUND] in groups:
        return terminal
    # Of a field that occurs twice, the last one counts.
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
