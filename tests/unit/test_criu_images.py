"""Repairing CRIU's images, on hand-made images."""

import struct
from pathlib import Path

from waypoint.kernel.criu.images import (
    repair_controlling_terminals,
    repair_foreground_groups,
    repair_foreign_terminals,
)
from waypoint.kernel.criu.protobuf import Field, decode, encode

MAGIC = b"\x01\x02\x03\x04\x05\x06\x07\x08"


def write_image(path: Path, *messages: list[Field]) -> bytes:
    encoded = [encode(message) for message in messages]
    raw = MAGIC + b"".join(struct.pack("<I", len(message)) + message for message in encoded)
    path.write_bytes(raw)
    return raw


def foregrounds(path: Path) -> list[int | bytes]:
    raw, at, found = path.read_bytes(), len(MAGIC), []
    assert raw.startswith(MAGIC)
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        found.append(decode(raw[at + 4 : at + 4 + length])[7])
        at += 4 + length
    return found


def test_only_a_missing_foreground_group_is_replaced_by_the_session_leader(tmp_path: Path) -> None:
    write_image(tmp_path / "pstree.img", [(1, 1), (3, 1), (4, 1)], [(1, 300), (3, 300), (4, 300)])
    terminals = tmp_path / "tty-info.img"
    write_image(
        terminals,
        [(1, 1), (6, 300), (7, 300), (8, 5)],  # the shell itself
        [(1, 2), (6, 300), (7, 4000), (9, b"modes")],  # no process of this group is left
        [(1, 3), (6, 0), (7, 0)],  # no session, so not a controlling terminal
    )
    repair_foreground_groups(tmp_path)
    assert foregrounds(terminals) == [300, 300, 0]
    assert b"modes" in terminals.read_bytes()


def test_a_foreign_tree_keeps_only_the_terminals_of_its_own_sessions(tmp_path: Path) -> None:
    write_image(tmp_path / "pstree.img", [(1, 300), (3, 300), (4, 300)], [(1, 301), (3, 301), (4, 200)])
    terminals = tmp_path / "tty-info.img"
    write_image(
        terminals,
        # opened by the tree itself; no group is in the foreground at this moment
        [(1, 1), (6, 300), (7, 4000)],
        [(1, 2), (6, 200), (7, 301)],  # of the shell whose job it is; the shell was not saved
    )
    repair_foreign_terminals(tmp_path)
    assert foregrounds(terminals) == [300, 0]
    repaired = terminals.read_bytes()
    repair_foreign_terminals(tmp_path)
    assert terminals.read_bytes() == repaired


def test_correct_images_are_not_written(tmp_path: Path) -> None:
    write_image(tmp_path / "pstree.img", [(1, 2), (3, 2), (4, 2)])
    raw = write_image(tmp_path / "tty-info.img", [(1, 1), (6, 2), (7, 2)])
    (tmp_path / "tty-info.img").chmod(0o400)
    before = (tmp_path / "tty-info.img").stat().st_ino
    repair_foreground_groups(tmp_path)
    assert (tmp_path / "tty-info.img").read_bytes() == raw
    assert (tmp_path / "tty-info.img").stat().st_ino == before


def test_a_descriptor_of_dev_tty_is_opened_by_the_terminals_own_name(tmp_path: Path) -> None:
    def regular(id_: int, name: str, mount: int, mode: int) -> list[Field]:
        return [(1, 1), (2, id_), (3, encode([(1, id_), (2, 0o2), (6, name), (7, mount), (10, mode)]))]

    def terminal(id_: int, terminal: int, opened_as: int) -> list[Field]:
        return [(1, 11), (2, id_), (19, encode([(1, id_), (2, terminal), (6, opened_as)]))]

    files = tmp_path / "files.img"
    before = write_image(
        files,
        *(regular(1, "/dev/pts/0", 7, 0o620), terminal(2, 100, 1)),
        *(regular(3, "/dev/tty", 5, 0o666), terminal(4, 100, 3)),
        *(regular(5, "/dev/pts/1", 7, 0o600), terminal(6, 101, 5)),
        *(regular(7, "/dev/tty", 5, 0o666), terminal(8, 101, 7)),
        regular(9, "/srv/dev/tty", 5, 0o644),
    )
    repair_controlling_terminals(tmp_path)
    raw, at, opened = files.read_bytes(), len(MAGIC), {}
    assert len(raw) != len(before)
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        file = decode(raw[at + 4 : at + 4 + length])
        at += 4 + length
        if 3 in file:
            entry = file[3]
            assert isinstance(entry, bytes)
            fields = decode(entry)
            opened[file[2]] = (fields[6], fields[7], fields[10], fields[2])
    assert opened == {
        1: (b"/dev/pts/0", 7, 0o620, 2),
        3: (b"/dev/pts/0", 7, 0o620, 2),
        5: (b"/dev/pts/1", 7, 0o600, 2),
        7: (b"/dev/pts/1", 7, 0o600, 2),
        9: (b"/srv/dev/tty", 5, 0o644, 2),
    }


def test_a_tree_without_terminals_is_not_changed(tmp_path: Path) -> None:
    repair_foreground_groups(tmp_path)
    assert list(tmp_path.iterdir()) == []
