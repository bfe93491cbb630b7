"""Users as a branch knows them: its own /etc/passwd, not the host's."""

import os
import stat
from dataclasses import dataclass

from waypoint.errors import NotFound

__all__ = ["ROOT", "User", "find_user"]

_ID_MAX = (1 << 32) - 2
_PASSWD_BYTES_MAX = 1 << 20  # the agent may have made it endless


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gid: int
    home: str


ROOT = User("root", 0, 0, "/root")


def find_user(root: str, text: str) -> User:
    """The user ``NAME``, ``UID`` or ``UID:GID`` in the branch at ``root``."""
    name, colon, group = text.partition(":")
    known = next((user for user in _users(root) if name in (user.name, str(user.uid))), None)
    uid = known.uid if known else _number(name)
    gid = _number(group) if colon else (known.gid if known else uid)
    if uid is None or gid is None:
        raise NotFound(
            "user", text, hint="NAME, UID, NAME:GID or UID:GID (numbers), as in /etc/passwd of the branch"
        )
    return User(known.name if known else name, uid, gid, known.home if known else "/")


def _users(root: str) -> list[User]:
    try:
        # What the agent made of this file is not followed anywhere: it may be a link to the host's.
        directory = os.open(f"{root}/etc", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fd = os.open(
                "passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory
            )
        finally:
            os.close(directory)
    except OSError:  # a base may have none
        return []
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        text = file.read(_PASSWD_BYTES_MAX).decode(errors="replace")
    return [user for line in text.splitlines() if (user := _parse(line)) is not None]


def _parse(line: str) -> User | None:
    fields = line.rstrip("\n").split(":")
    if len(fields) < 6:
        return None
    uid, gid = _number(fields[2]), _number(fields[3])
    return None if uid is None or gid is None else User(fields[0], uid, gid, fields[5] or "/")


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_ID_MAX))
    return int(text) if is_number and int(text) <= _ID_MAX else None
