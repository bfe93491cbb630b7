"""What a state directory holds on the host at a moment: mounts, cgroups, processes, files."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.cgroup import Cgroup, find_cgroup2
from waypoint.kernel.mounts import detach_all, read_mounts
from waypoint.store.pool import unmount_pool

__all__ = ["Holdings", "look_at_host", "sweep"]

_KEPT_DIRECTORIES = ("locks", "mnt", "sessions", "work", "pool/branches", "pool/checkpoints")


@dataclass(frozen=True)
class Holdings:
    mounts: frozenset[str] = frozenset()
    cgroups: frozenset[str] = frozenset()
    processes: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()

    def __sub__(self, other: "Holdings") -> "Holdings":
        return Holdings(
            self.mounts - other.mounts,
            self.cgroups - other.cgroups,
            self.processes - other.processes,
            self.files - other.files,
        )


def sweep(state_dir: Path) -> None:
    """Take away what a failed test left, so that nothing outlives the run. The pool is unmounted too."""
    for cgroup in _cgroups(state_dir):
        Cgroup(cgroup).remove()
    for path in sorted(_mounts(state_dir), reverse=True):
        if path != f"{state_dir}/pool":
            detach_all(Path(path))
    unmount_pool(state_dir)


def _cgroups(state_dir: Path) -> list[Path]:
    tag = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:8]
    return list(find_cgroup2().glob(f"waypoint-{tag}.*"))


def _mounts(state_dir: Path) -> list[str]:
    return [mount.path for mount in read_mounts() if mount.path.startswith(f"{state_dir}/")]


def look_at_host(state_dir: Path) -> Holdings:
    cgroups = _cgroups(state_dir)
    return Holdings(
        mounts=frozenset(_mounts(state_dir)),
        cgroups=frozenset(cgroup.name for cgroup in cgroups),
        processes=frozenset(
            f"{pid} in {cgroup.name}"
            for cgroup in cgroups
            for pid in (cgroup / "cgroup.procs").read_text().split()
        ),
        files=frozenset(
            f"{directory}/{entry}"
            for directory in _KEPT_DIRECTORIES
            for entry in os.listdir(state_dir / directory)
        ),
    )
