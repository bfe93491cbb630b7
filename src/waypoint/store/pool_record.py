"""Which pool a state directory has: the record ``pool.json``, read before every operation."""

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from waypoint.errors import StoreError

__all__ = ["Pool", "PoolKind", "read_record", "record_path", "write_record"]

FORMAT_VERSION = 1


class PoolKind(StrEnum):
    """How the pool is stored."""

    NATIVE = "btrfs-native"
    LOOP = "btrfs-loop"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool that is ready for use: mounted, if its kind is one that is mounted."""

    state_dir: Path
    kind: PoolKind
    size_bytes: int | None = None
    uuid: str | None = None
    mount_options: str = ""
    direct_io: bool = False

    @property
    def root(self) -> Path:
        """The directory that holds everything in the pool."""
        return self.state_dir / "pool"

    @property
    def image(self) -> Path:
        """The file behind a loop pool."""
        return self.state_dir / "pool.img"

    @property
    def is_btrfs(self) -> bool:
        """Whether subvolumes and snapshots can be made in it."""
        return self.kind is not PoolKind.DIRECTORY


def record_path(state_dir: Path) -> Path:
    """The path of the record."""
    return state_dir / "pool.json"


def read_record(state_dir: Path) -> Pool | None:
    """The pool of ``state_dir``; None if none was made. Raises StoreError if the record makes no sense."""
    path = record_path(state_dir)
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fields = json.loads(text)
        version = fields.pop("version")
        if version != FORMAT_VERSION:
            raise StoreError(f"{path} has format {version}, this program knows {FORMAT_VERSION}")
        fields["kind"] = PoolKind(fields["kind"])
        return Pool(state_dir=state_dir, **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "remove the file and run: waypoint setup (what is in the pool stays)"
        raise StoreError(f"{path} is damaged: {error}", hint=hint) from error


def write_record(pool: Pool) -> None:
    """Record ``pool``; after a power cut there is the old record or the new one."""
    fields = asdict(pool)
    del fields["state_dir"]
    path = record_path(pool.state_dir)
    fresh = path.with_suffix(".json.new")
    with fresh.open("w") as stream:
        json.dump({"version": FORMAT_VERSION, **fields}, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, path)
    directory = os.open(pool.state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
