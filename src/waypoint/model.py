"""The records that travel between layers: immutable, parsed once, then trusted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

__all__ = [
    "Allowed",
    "Base",
    "BaseKind",
    "BaseRecord",
    "BranchRecord",
    "CheckpointKind",
    "CheckpointRecord",
    "CopyResult",
    "ExtraMount",
    "ImageConfig",
    "Limits",
    "Network",
    "NetworkMode",
    "OperationKind",
    "OperationRecord",
    "OperationStatus",
    "PortRecord",
    "Secret",
    "SessionRecord",
    "SessionSettings",
    "Volume",
    "Walls",
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
class ImageConfig:
    """What an image says about how to run it. It is empty for a base that is not from an image."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    shell: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRecord:
    """A base stored in the pool. ``image`` is the image in the build store with the same files, if there is one."""

    id: str
    names: tuple[str, ...]
    created_at: float
    size_bytes: int
    source: str
    config: ImageConfig = ImageConfig()
    image: str | None = None


class NetworkMode(StrEnum):
    NAT = "nat"  # outbound through the host, an address of its own
    ISOLATED = "isolated"  # loopback only
    HOST = "host"  # the host's own network


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """A host that a session may reach, by name or address, on one port or on all."""

    host: str
    port: int | None = None
    addresses: tuple[str, ...] = ()  # of the name, looked up when the session was created


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How a session reaches other hosts. ``allowed`` lists those it may reach; None means all."""

    mode: NetworkMode = NetworkMode.ISOLATED
    allowed: tuple[Allowed, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each branch of a session may use at most; None means no limit."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """What a session may not do to the host it runs on."""

    privileged: bool = False
    no_new_privs: bool = False
    read_only_base: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A directory or file of the host inside a session: shared by all branches, in no checkpoint."""

    source: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A file of the host that is read again for each incarnation and shown below /run/secrets."""

    name: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What was asked for when the session was created; it applies to all of its branches."""

    shell: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    allow_self: bool = False
    attended: bool = False
    user: str | None = None
    network: Network = Network()
    limits: Limits = Limits()
    walls: Walls = Walls()
    volumes: tuple[Volume, ...] = ()
    secrets: tuple[Secret, ...] = ()
    hidden: tuple[str, ...] = ()  # host paths hidden from a session whose base is the host's root
    shown: tuple[str, ...] = ()  # paths that are hidden by default, but not from this session
    work_dir: str | None = None  # where the live files of ``main`` are mounted on the host


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
    """A live branch. ``incarnation`` names its files, mount and cgroup; a restore gives it a new one.

    A suspended branch has none of these, and its ``init_pid`` is 0. It will be restored from its head.
    """

    session_id: str
    name: str
    incarnation: str
    init_pid: int
    head: str | None
    created_at: float
    is_suspended: bool = False


class CheckpointKind(StrEnum):
    """What a checkpoint holds besides the files of the branch; see docs/checkpoints.md."""

    FULL = "full"  # all processes and terminals of the branch
    FILES = "files"  # nothing
    PROCESS = "process"  # a program that ran on the host, in the session's work directory


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    id: str
    session_id: str
    name: str
    parent: str | None
    branch: str
    created_at: float
    memory_bytes: int
    kind: CheckpointKind = CheckpointKind.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """A TCP port of a branch, and the port of the host's loopback that is forwarded to it."""

    session_id: str
    branch: str
    port: int
    host_port: int


class OperationKind(StrEnum):
    """The kinds of operations: on a session, on a base, or in a branch."""

    CREATE = "create"
    FORK = "fork"
    RESTORE = "restore"
    RESUME = "resume"
    PROMOTE = "promote"
    SNAPSHOT = "snapshot"
    PARK = "park"
    SUSPEND = "suspend"
    DESTROY = "destroy"
    CLEANUP = "cleanup"

    BUILD = "build"
    PULL = "pull"
    BOOTSTRAP = "bootstrap"
    IMPORT = "import"
    REMOVE_BASE = "base-rm"

    # These make nothing that could be left half made, so they are recorded only when they are over.
    EXEC = "exec"
    READ_FILE = "read_file"
    WRITE_FILE = "write_file"
    UPLOAD = "upload"
    DOWNLOAD = "download"


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
    kind: OperationKind
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
    """How much a copy into or out of a branch has copied; holes in files are not counted."""

    files: int
    directories: int
    links: int
    size_bytes: int
