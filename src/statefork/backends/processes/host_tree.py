"""What a process tree with namespaces of its own sees of the host's files: all of them, as they are.

Its root is a small directory that all instances of an environment share. Each directory at the top of the host's root
is mounted into it, without what is mounted below, together with a ``/dev`` and ``/proc`` of the tree's own; so CRIU meets
only mounts that we name to it. ``/.waypoint`` is each instance's own.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.skeleton import make_devices
from waypoint.kernel.cgroup.group import Cgroup
from waypoint.kernel.criu.program import bind_options
from waypoint.kernel.processes.launcher import start_branch
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.session.context import launcher_path

__all__ = ["CONTROL", "HostTree", "start_init"]

CONTROL = ".waypoint"
HOSTNAME = "statefork"
_OWN = frozenset({"proc", "sys", "dev", CONTROL})


@dataclass(frozen=True, slots=True)
class HostTree:
    """``root`` is the directory that all instances share; ``shares`` are the host's directories mounted into it."""

    root: Path
    shares: tuple[str, ...]

    @classmethod
    def make(cls, root: Path, start: Path) -> "HostTree":
        """Make the root, with the file system that holds ``start`` wherever that is mounted."""
        root.mkdir(mode=0o755)
        for name in _OWN:
            (root / name).mkdir(mode=0o755)
        make_devices(root / "dev")
        shares = []
        for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
            if entry.name in _OWN:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), root / entry.name)
            elif entry.is_dir(follow_symlinks=False):
                (root / entry.name).mkdir()
                shares.append(entry.path)
        holding = _mount_of(start)
        if holding.count("/") > 1 and holding.split("/")[1] not in _OWN:
            shares.append(holding)
        tree = cls(root, tuple(shares))
        tree._record.write_text(json.dumps(shares))
        return tree

    @classmethod
    def load(cls, root: Path) -> "HostTree":
        return cls(root, tuple(json.loads(cls(root, ())._record.read_text())))

    def binds(self, instance: Path, *, with_shares: bool) -> list[tuple[Path, Path]]:
        """The mounts of an instance: its root, and what is seen in it. At a restore CRIU makes the latter itself.

        They are made in a namespace of their own, where they disturb nobody else on the host.
        """
        point = instance / "root"
        made = [(self.root, point)]
        if with_shares:
            made.append((instance / CONTROL, point / CONTROL))
            made += [(Path(path), point / path.lstrip("/")) for path in self.shares]
        return made

    def names(self) -> list[str]:
        """The mounts by the names that a dump gives them."""
        return [f"mnt[/{CONTROL}]:control", *(f"mnt[{path}]:{_key(path)}" for path in self.shares)]

    def restored_names(self, instance: Path) -> list[str]:
        """Where a restore finds the mounts of these names."""
        shares = (f"mnt[{_key(path)}]:{path}" for path in self.shares)
        return [f"mnt[control]:{instance / CONTROL}", *shares]

    @property
    def _record(self) -> Path:
        return self.root.with_suffix(".json")


def start_init(tree: HostTree, instance: Path, cgroup: Cgroup) -> int:
    """Start our init on the root of an instance, in namespaces of its own; return its pid."""
    launcher = os.fspath(launcher_path())
    return start_branch(
        (
            *(launcher, "enter", *bind_options(tree.binds(instance, with_shares=True)), "--"),
            *(launcher, "branch", "--root", os.fspath(instance / "root")),
            *("--cgroup", os.fspath(cgroup.path), "--hostname", HOSTNAME),
        )
    )


def _mount_of(path: Path) -> str:
    """Where the file system that holds ``path`` is mounted."""
    resolved = os.fspath(path.resolve())
    points = [mount.path for mount in read_mounts() if _is_below(resolved, mount.path)]
    return max(points, key=len)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _key(path: str) -> str:
    return "host" + path.replace("/", "-")
