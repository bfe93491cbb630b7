"""Users as a branch knows them: its own /etc/passwd and /etc/group, not the host's."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from waypoint.errors import NotFound
from waypoint.model import SessionSettings

__all__ = ["ROOT", "User", "find_user", "session_user"]

_ID_MAX = (1 << 32) - 2
_FILE_BYTES_MAX = 1 << 20  # the agent may have made it endless
_GROUPS_MAX = 64  # as many as init takes


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...] = ()  # besides gid

    @property
    def env(self) -> dict[str, str]:
        """What a login sets."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


ROOT = User("root", 0, 0, "/root")


def session_user(root: str, settings: SessionSettings) -> User:
    """Who shells and commands run as in the branch at ``root``, unless somebody else is named."""
    return ROOT if settings.user is None else find_user(root, settings.user)


def find_user(root: str, text: str) -> User:
    """The user ``NAME``, ``UID`` or either with ``:GROUP`` in the branch at ``root``.

    A group that is named is the only one; a number that no user has, without a group, gets the group of root: both as
    in ``docker run --user``. Images that any user may run let that group access what they need.
    """
    name, colon, group = text.partition(":")
    known = next((user for user in _users(root) if name in (user.name, str(user.uid))), None)
    uid = known.uid if known else _number(name)
    gid = _find_group(root, group) if colon else (known.gid if known else 0)
    if uid is None or gid is None:
        raise NotFound(
            "user",
            text,
            hint="NAME, UID, NAME:GROUP or UID:GROUP, as in /etc/passwd and /etc/group of the branch",
        )
    if known is None:
        return User(name, uid, gid, "/")
    return User(known.name, uid, gid, known.home, () if colon else _memberships(root, known.name, gid))


def _users(root: str) -> Iterator[User]:
    for fields in _entries(root, "passwd", 6):
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None:
            yield User(fields[0], uid, gid, fields[5] or "/")


def _groups(root: str) -> Iterator[tuple[str, int, list[str]]]:
    for fields in _entries(root, "group", 4):
        gid = _number(fields[2])
        if gid is not None:
            yield fields[0], gid, fields[3].split(",")


def _find_group(root: str, text: str) -> int | None:
    return next((gid for name, gid, _ in _groups(root) if text == name), _number(text))


def _memberships(root: str, name: str, own: int) -> tuple[int, ...]:
    found = dict.fromkeys(gid for _, gid, members in _groups(root) if name in members and gid != own)
    return tuple(found)[:_GROUPS_MAX]


def _entries(root: str, file_name: str, fields_min: int) -> Iterator[list[str]]:
    for line in _read(root, file_name).splitlines():
        fields = line.split(":")
        if len(fields) >= fields_min:
            yield fields


def _read(root: str, name: str) -> str:
    """The content of a file of /etc, empty if it is missing or not a regular file."""
    try:
        # Links are not followed: the agent may have made this file a link to the host's.
        directory = os.open(f"{root}/etc", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError:  # a base may not have the file
        return ""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(_FILE_BYTES_MAX).decode(errors="replace")


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_ID_MAX))
    return int(text) if is_number and int(text) <= _ID_MAX else None
