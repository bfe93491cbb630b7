"""The records that travel between layers: immutable, parsed once, then trusted.

They are named tuples because every command line imports this module: making a dataclass costs five times as
much at import, and the module ``dataclasses`` alone a third of the interpreter's own start.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from waypoint.errors import InvalidName

__all__ = [
    "MAIN",
    "Base",
    "BaseKind",
    "BranchRecord",
    "CheckpointRecord",
    "ExtraMount",
    "OperationRecord",
    "OperationStatus",
    "SessionRecord",
    "parse_name",
]

MAIN = "main"
"""The first branch of a session, and the first terminal of a branch."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_name(kind: str, text: str) -> str:
    """``text`` if it may be the name of a ``kind``; the check comes before any path is built from it."""
    if not _NAME.fullmatch(text) or (kind == "checkpoint" and text == "current"):
        raise InvalidName(kind, text)
    return text


class BaseKind(StrEnum):
    HOST = "host"
    DIRECTORY = "directory"


class ExtraMount(NamedTuple):
    """A mount of the host below ``/`` that a session sees through an overlay of its own."""

    key: str
    path: str


class Base(NamedTuple):
    """A read-only root file system."""

    kind: BaseKind
    path: Path
    extra_mounts: tuple[ExtraMount, ...] = ()


class SessionRecord(NamedTuple):
    id: str
    name: str | None
    base: Base
    workspace: str
    created_at: float
    is_open: bool


class BranchRecord(NamedTuple):
    """A live branch. ``incarnation`` names its files, mount and cgroup; a restore gives it a new one."""

    session_id: str
    name: str
    incarnation: str
    init_pid: int
    head: str | None
    created_at: float


class CheckpointRecord(NamedTuple):
    id: str
    session_id: str
    name: str
    parent: str | None
    branch: str
    created_at: float
    memory_bytes: int


class OperationStatus(StrEnum):
    BEGUN = "begun"
    PUBLISHED = "published"
    DONE = "done"
    FAILED = "failed"
    RECOVERED = "recovered"


class OperationRecord(NamedTuple):
    """One change, with what it made (so that recovery knows where to look) and how long its steps took."""

    id: int
    kind: str
    session_id: str
    branch: str
    status: OperationStatus
    began_at: float
    total_ms: float | None
    incarnation: str | None = None
    old_incarnation: str | None = None
    checkpoint: str | None = None
    phases_ms: Mapping[str, float] = MappingProxyType({})
