"""The walls of a session, as its settings ask for them: how its root is mounted, and the launcher's options.

The launcher raises them once, for the first process of the first branch (``native/init/walls.c``); everything
else inherits them, and CRIU saves and restores them with the processes. ``docs/security.md`` says what they stop.
"""

import os
from collections.abc import Iterator
from pathlib import PurePath

from waypoint.engine.whiteouts import outermost
from waypoint.kernel.copy.confined import directory_root
from waypoint.kernel.syscalls import MS_NODEV
from waypoint.model import Base, SessionRecord

__all__ = ["launcher_options", "root_flags"]

# What stays writable, in addition to /dev, which contains /dev/shm.
_OWN = ("/.waypoint", "/run")
_OF_THE_BASE = ("/tmp", "/var/tmp")


def root_flags(session: SessionRecord) -> int:
    """The mount flags of all file systems that a branch of this session has from its base.

    The base may bring device nodes. Those that a branch may open are in /dev, which is a mount of its own.
    """
    return 0 if session.settings.walls.privileged else MS_NODEV


def launcher_options(session: SessionRecord) -> tuple[str, ...]:
    """The launcher's options for the walls."""
    walls = session.settings.walls
    return (
        *(("--privileged",) if walls.privileged else ()),
        *(("--no-new-privs",) if walls.no_new_privs else ()),
        *(_read_only_options(session) if walls.read_only_base else ()),
    )


def _read_only_options(session: SessionRecord) -> Iterator[str]:
    writable = _writable_paths(session)
    mounts = [extra.path for extra in session.base.extra_mounts]
    for mount in ("/", *mounts):
        if not any(PurePath(mount).is_relative_to(path) for path in writable):
            yield from ("--read-only", mount)
    for path in writable:
        if path not in mounts:
            yield from ("--writable", path)


def _writable_paths(session: SessionRecord) -> list[str]:
    """The outermost writable paths: what is above them is read-only, so programs cannot have put a link there.

    A link of the base is followed here, in the base; the launcher follows none.
    """
    work = () if session.workspace == "/" else (session.workspace,)
    of_the_base = (_real_path(session.base, path) for path in outermost((*_OF_THE_BASE, *work)))
    return outermost((*_OWN, *of_the_base))


def _real_path(base: Base, path: str) -> str:
    with directory_root(base.path) as root:
        try:
            with root.found(path, follow=True) as found:
                real = os.readlink(f"/proc/self/fd/{found}")
        except FileNotFoundError:  # a base needs no /var/tmp
            return path
    return f"/{os.path.relpath(real, base.path)}"
