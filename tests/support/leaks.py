"""What a state directory uses on the host at a moment: mounts, cgroups, processes, files."""

import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.platform import cgroup_name
from waypoint.kernel.cgroup.controllers import find_controllers
from waypoint.kernel.cgroup.group import Cgroup, find_cgroup2, remove_group
from waypoint.kernel.storage.mounts import detach_all, read_mounts
from waypoint.store.layout import Layout
from waypoint.store.pool import unmount_pool

__all__ = ["Holdings", "cgroups_of", "look_at_host", "sweep"]

_KEPT_DIRECTORIES = (
    "limits",
    "locks",
    "mnt",
    "sessions",
    "shared",
    "work",
    "pool/branches",
    "pool/checkpoints",
    "pool/programs",
)


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
    """Remove what a failed test left, so that nothing outlives the run, and unmount the pool."""
    for cgroup in cgroups_of(state_dir):
        if (cgroup / "cgroup.kill").exists():
            Cgroup(cgroup).remove()
    for cgroup in cgroups_of(state_dir):
        remove_group(cgroup)
    for path in sorted(_mounts(state_dir), reverse=True):
        if path != f"{state_dir}/pool":
            detach_all(Path(path))
    unmount_pool(state_dir)


def cgroups_of(state_dir: Path, what: str = "*") -> list[Path]:
    """List our cgroups in the tree of version 2, and in the trees of version 1 that hold limits."""
    name = cgroup_name(Layout(state_dir), what)
    roots = {find_cgroup2(), *(controller.root for controller in find_controllers().values())}
    return [group for root in roots for group in root.glob(name)]


def _mounts(state_dir: Path) -> list[str]:
    """List the mounts below the state directory, and the work directories elsewhere that show files of its pool."""
    ours = set()
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        if f"upperdir={state_dir}/" in line:
            ours.add(line.split(" ")[4])
    return [
        mount.path for mount in read_mounts() if mount.path.startswith(f"{state_dir}/") or mount.path in ours
    ]


def look_at_host(state_dir: Path) -> Holdings:
    cgroups = cgroups_of(state_dir)
    return Holdings(
        mounts=frozenset(_mounts(state_dir)),
        cgroups=frozenset(map(os.fspath, cgroups)),
        processes=frozenset(
            f"{pid} in {cgroup}"
            for cgroup in cgroups
            for pid in (cgroup / "cgroup.procs").read_text().split()
        ),
        files=frozenset(
            f"{directory}/{entry}"
            for directory in _KEPT_DIRECTORIES
            if (state_dir / directory).exists()  # some are made only when needed
            for entry in os.listdir(state_dir / directory)
        ),
    )
