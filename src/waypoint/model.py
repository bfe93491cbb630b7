"""The records that travel between layers: immutable, parsed once, then trusted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

__all__ = [
    "Base",
    "BaseKind",
    "BranchRecord",
    "CheckpointRecord",
    "CopyResult",
    "ExtraMount",
    "OperationRecord",
    "OperationStatus",
    "SessionRecord",
    "SessionSettings",
]


class BaseKind(StrEnum):
    HOST = "host"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraMount:
    """A mount of the host below ``/`` that a session sees through an overlay of its own."""

    key: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A read-only root file system."""

    kind: BaseKind
    path: Path
    extra_mounts: tuple[ExtraMount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What was asked for when the session was made, and holds for all of its branches."""

    shell: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    allow_self: bool = False
    attended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    id: str
    name: str | None
    base: Base
    workspace: str
    created_at: float
    is_open: bool
    settings: SessionSettings = SessionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """A live branch. ``incarnation`` names its files, mount and cgroup; a restore gives it a new one."""

    session_id: str
    name: str
    incarnation: str
    init_pid: int
    head: str | None
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
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
    phases_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """What a copy into or out of a branch has copied; holes of files are not counted."""

    files: int
    directories: int
    links: int
    size_bytes: int
