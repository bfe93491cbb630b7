"""What a state directory holds on the host at a moment: mounts, cgroups, processes, files."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.cgroup import find_cgroup2
from waypoint.kernel.mounts import read_mounts

__all__ = ["Holdings", "look_at_host"]

_KEPT_DIRECTORIES = ("mnt", "sessions", "work", "pool/branches", "pool/checkpoints")


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


def look_at_host(state_dir: Path) -> Holdings:
    tag = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:8]
    cgroups = list(find_cgroup2().glob(f"waypoint-{tag}.*"))
    return Holdings(
        mounts=frozenset(mount.path for mount in read_mounts() if mount.path.startswith(f"{state_dir}/")),
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
