"""Start a branch from nothing but its base."""

import os

from waypoint.engine.incarnation import add_mount_layers, mount_root
from waypoint.engine.platform import Platform
from waypoint.engine.skeleton import write_skeleton
from waypoint.errors import LaunchFailed, ToolFailed
from waypoint.kernel.process import run_tool
from waypoint.log import Timeline
from waypoint.model import Base

__all__ = ["launch"]

LAUNCH_TIMEOUT_S = 30.0
HOSTNAME = "waypoint"


def launch(
    platform: Platform, base: Base, incarnation: str, timeline: Timeline, *, allow_self: bool = False
) -> int:
    """Make the files, mounts and namespaces of a new branch, start our init in it, return its host pid.

    On failure parts of the incarnation may exist: the caller destroys it.
    """
    with timeline.step("layer"):
        platform.layers.create(platform.layout.layer(incarnation))
        add_mount_layers(platform, base, incarnation)
        write_skeleton(platform, base, incarnation)
    with timeline.step("mount"):
        root = mount_root(platform, base, incarnation)
    with timeline.step("start"):
        cgroup = platform.cgroup(incarnation)
        cgroup.create()
        report, write_end = os.pipe()
        try:
            try:
                run_tool(
                    (
                        *(os.fspath(platform.criu.launcher), "branch"),
                        *("--root", os.fspath(root), "--cgroup", os.fspath(cgroup.path)),
                        *("--hostname", HOSTNAME, "--report", str(write_end)),
                        *(("--allow-self",) if allow_self else ()),
                    ),
                    timeout_s=LAUNCH_TIMEOUT_S,
                    pass_fds=(write_end,),
                )
            except ToolFailed as error:
                os.set_blocking(report, False)
                raise LaunchFailed(f"cannot start the branch: {_read(report) or error}") from error
            return int(_read(report).removeprefix("ok "))
        finally:
            os.close(report)
            os.close(write_end)


def _read(fd: int) -> str:
    try:
        return os.read(fd, 4096).decode(errors="replace").strip()
    except BlockingIOError:
        return ""
