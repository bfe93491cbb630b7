"""The yardstick: CRIU driven by hand, on the same tree, with a warm kernel cache and nothing else."""

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from waypoint import Session
from waypoint.engine.extra_mounts import find_mount_points, saved_mount_points
from waypoint.engine.incarnation import destroy, mount_root
from waypoint.kernel.criu.images import read_dump_statistics
from waypoint.model import CheckpointRecord
from waypoint.store.layout import new_id

__all__ = ["DumpTimes", "plain_dump", "plain_restore"]

OPTIONS = (
    *("--manage-cgroups=ignore", "--ext-unix-sk", "--tcp-established", "--file-locks", "--link-remap"),
    *("--network-lock", "skip", "-v1"),
)


@dataclass(frozen=True)
class DumpTimes:
    call_ms: float
    pause_ms: float


def plain_dump(session: Session) -> DumpTimes:
    """``criu dump --leave-running`` of the session's tree into the same pool."""
    platform = session.context.platform
    branch = session.main.record
    images = platform.layout.pool / "plain"
    images.mkdir()
    command = (
        *_inside(session, "--net", f"/proc/{branch.init_pid}/ns/net"),
        *("dump", "-t", str(branch.init_pid), "-D", str(images), "-o", "dump.log", "--leave-running"),
        *("--root", str(platform.layout.mount(branch.incarnation)), *OPTIONS),
        *_external((mount_point, key) for key, mount_point in find_mount_points(platform, branch).items()),
    )
    call_ms = _timed(command, images / "dump.log")
    pause_ms = read_dump_statistics(images / "stats-dump").pause_ms
    shutil.rmtree(images)
    return DumpTimes(call_ms, pause_ms)


def plain_restore(session: Session, checkpoint: CheckpointRecord) -> float:
    """``criu restore`` of a checkpoint on a root that is mounted already; return the milliseconds it took."""
    platform = session.context.platform
    incarnation = new_id()
    layout = platform.layout
    cgroup = platform.cgroup(incarnation)
    work = layout.work(session.id) / incarnation
    work.mkdir(parents=True)
    try:
        platform.layers.materialize(layout.checkpoint_layer(checkpoint.id), layout.layer(incarnation))
        mount_points = saved_mount_points(platform, session.record, checkpoint.id)
        root = mount_root(platform, session.record, incarnation, mount_points)
        cgroup.create()
        command = (
            *_inside(session, "--net", "new", "--cgroup", str(cgroup.path)),
            *("restore", "-D", str(layout.images(checkpoint.id)), "-W", str(work), "-o", "restore.log"),
            *("--root", str(root), "--restore-detached", *OPTIONS),
            *_external((key, f"{root}{mount_point}") for key, mount_point in mount_points.items()),
        )
        return _timed(command, work / "restore.log")
    finally:
        destroy(platform, incarnation)
        shutil.rmtree(work)


def _external(mounts: Iterable[tuple[str, str]]) -> Iterator[str]:
    for here, there in mounts:
        yield from ("--external", f"mnt[{here}]:{there}")


def _inside(session: Session, *mount_point: str) -> tuple[str, ...]:
    criu = session.context.platform.criu
    return (str(criu.launcher), "enter", *mount_point, "--kdat", str(criu.kdat), "--", *criu.command)


def _timed(command: tuple[str, ...], log: Path) -> float:
    began = time.perf_counter()
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    took_ms = (time.perf_counter() - began) * 1000
    if finished.returncode != 0:
        raise RuntimeError(log.read_text() if log.exists() else f"{command[0]} failed")
    return took_ms
