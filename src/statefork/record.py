"""What is kept of an environment between processes: its tree, branches and images in one JSON file that is replaced after
each change, its history in another one that only grows, a line for each operation.

A process locks the directory of an environment for as long as it works with it; a second one is refused.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from statefork.backend import Image, Instance
from statefork.errors import EnvironmentInUse, StateForkError, WrongUse
from statefork.stats import BenchmarkEntry
from statefork.tree import SnapshotNode

__all__ = [
    "BranchRecord",
    "EnvironmentDirectory",
    "EnvironmentRecord",
    "default_state_dir",
    "directories",
    "read_record",
]

VERSION = 1
_HISTORY = "history.jsonl"


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Where environments are kept: STATEFORK_STATE_DIR if it is set, else a directory that depends on the user."""
    if chosen := environ.get("STATEFORK_STATE_DIR"):
        return Path(chosen).resolve()
    if os.geteuid() == 0:
        return Path("/var/lib/statefork")
    home = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME', '/')}/.local/state"
    return Path(home) / "statefork"


@dataclass(slots=True, kw_only=True)
class BranchRecord:
    instance: Instance
    base_snapshot_id: str | None = None
    current_snapshot_id: str | None = None
    last_snapshot_id: str | None = None
    command_log: list[tuple[Any, int]] = field(default_factory=list)
    cumulative_exec_time: float = 0.0
    is_replayable: bool = True


@dataclass(slots=True, kw_only=True)
class EnvironmentRecord:
    id: str
    method: str
    options: dict[str, Any]
    current_branch_id: str = "main"
    branches: dict[str, BranchRecord] = field(default_factory=dict)
    nodes: list[SnapshotNode] = field(default_factory=list)
    images: dict[str, Image] = field(default_factory=dict)
    history: list[BenchmarkEntry] = field(default_factory=list)


class EnvironmentDirectory:
    """The directory of one environment, held by this process until :meth:`release`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._noted = 0  # how many operations the history on disk has
        self._noted_bytes = 0  # how many bytes its whole lines have

    @classmethod
    def create(cls, state_dir: Path) -> "EnvironmentDirectory":
        path = state_dir / secrets.token_hex(4)
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise StateForkError(
                f"environments cannot be kept in {state_dir}: {error.strerror}",
                hint="choose another directory: state_dir=, --state-dir or STATEFORK_STATE_DIR",
            ) from error
        return cls(path, _lock(path))

    @classmethod
    def open(cls, state_dir: Path, environment_id: str) -> "EnvironmentDirectory":
        path = state_dir / environment_id
        if os.sep in environment_id or not (path / "environment.json").is_file():
            raise WrongUse(f"no environment {environment_id!r} in {state_dir}", hint="statefork list")
        return cls(path, _lock(path))

    @property
    def id(self) -> str:
        return self.path.name

    def load(self, *, with_history: bool = True) -> EnvironmentRecord:
        """Read what was saved. Without the history, which may be damaged, it is enough to end the environment."""
        record = read_record(self.path, with_history=with_history)
        self._noted = len(record.history)
        self._noted_bytes = sum(map(len, _whole_lines(self.path)))
        return record

    def save(self, record: EnvironmentRecord) -> None:
        """Replace the record in one step: after a crash it is the old one or the new one."""
        draft = self.path / "environment.json.new"
        text = json.dumps(_document(record), default=os.fspath)  # options may be paths
        try:
            with open(draft, "w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.rename(draft, self.path / "environment.json")
            self._note(record.history[self._noted :])
        except OSError as error:
            raise StateForkError(
                f"what was done to environment {self.id} cannot be recorded in {self.path}: {error.strerror}",
                hint="free space there; the environment itself is not harmed",
            ) from error

    def _note(self, fresh: Sequence[BenchmarkEntry]) -> None:
        """Add to the history. First remove the partial line that a failed write may have left."""
        lines = b"".join(json.dumps(_plain(entry)).encode() + b"\n" for entry in fresh)
        with open(self.path / _HISTORY, "ab") as out:
            out.truncate(self._noted_bytes)
            out.write(lines)
        self._noted += len(fresh)
        self._noted_bytes += len(lines)

    def remove(self) -> None:
        """Remove the directory with all it holds, if it still exists, and release the lock."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)
        self.release()

    def release(self) -> None:
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)


def directories(state_dir: Path) -> Iterator[Path]:
    """The environments that were recorded there."""
    if state_dir.is_dir():
        yield from sorted(path.parent for path in state_dir.glob("*/environment.json"))


def read_record(path: Path, *, with_history: bool = True) -> EnvironmentRecord:
    """The record in a directory. Raises StateForkError if it cannot be understood or no longer exists."""
    try:
        with open(path / "environment.json") as file:
            content = json.load(file)
        version = content.pop("version")
        if version != VERSION:
            raise StateForkError(
                f"environment {path.name} was written by another version of StateFork"
                f" (format {version}, not {VERSION})"
            )
        return _record(content, _read_history(path) if with_history else [])
    except OSError as error:
        raise StateForkError(
            f"the record of environment {path.name} cannot be read: {error.strerror}", hint="statefork list"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateForkError(
            f"the record of environment {path.name} is damaged ({type(error).__name__}: {error})",
            hint=f"put {path}/environment.json back, or remove {path} and what it has left behind",
        ) from error


def _read_history(path: Path) -> list[BenchmarkEntry]:
    try:
        return [BenchmarkEntry(**json.loads(line)) for line in _whole_lines(path)]
    except (ValueError, TypeError) as error:
        raise StateForkError(
            f"the history of environment {path.name} is damaged ({type(error).__name__}: {error})",
            hint=f"correct or remove {path / _HISTORY}: it holds nothing but how long operations took",
        ) from error


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of the history, without a last one that was cut off."""
    try:
        with open(path / _HISTORY, "rb") as file:
            return [line for line in file if line.endswith(b"\n")]
    except FileNotFoundError:
        return []


def _plain(entry: BenchmarkEntry | SnapshotNode | Image | Instance | BranchRecord) -> dict[str, Any]:
    """Its fields as they are; asdict() would copy all they hold."""
    return {each.name: getattr(entry, each.name) for each in fields(entry)}


def _document(record: EnvironmentRecord) -> dict[str, Any]:
    return {
        "version": VERSION,
        "id": record.id,
        "method": record.method,
        "options": record.options,
        "current_branch_id": record.current_branch_id,
        "branches": {
            name: {**_plain(branch), "instance": _plain(branch.instance)}
            for name, branch in record.branches.items()
        },
        "nodes": [_plain(node) for node in record.nodes],
        "images": {name: _plain(image) for name, image in record.images.items()},
    }


def _record(fields: dict[str, Any], history: list[BenchmarkEntry]) -> EnvironmentRecord:
    return EnvironmentRecord(
        id=fields["id"],
        method=fields["method"],
        options=fields["options"],
        current_branch_id=fields["current_branch_id"],
        branches={name: _branch(branch) for name, branch in fields["branches"].items()},
        nodes=[SnapshotNode(**node) for node in fields["nodes"]],
        images={name: Image(**image) for name, image in fields["images"].items()},
        history=history,
    )


def _branch(fields: dict[str, Any]) -> BranchRecord:
    log = [(command, code) for command, code in fields.pop("command_log")]
    return BranchRecord(instance=Instance(**fields.pop("instance")), command_log=log, **fields)


def _lock(path: Path) -> int:
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:  # it is another user's, or was cleaned up this very moment
        raise StateForkError(
            f"environment {path.name} in {path.parent} cannot be opened: {error.strerror}",
            hint="statefork list",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise EnvironmentInUse(
            f"environment {path.name} is in use by process {holder or '?'}",
            hint="wait until it has ended, or use another environment",
        ) from error
    with suppress(OSError):  # only a hint for a second process
        os.truncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
