"""The work directory of a session: the live files of its branch ``main`` as a mount of the host.

People and programs of the host work in it. A link through ``/proc`` would not do: what runs there can be saved only if the
kernel can name where it is (docs/checkpoints.md, "Manual mode").
"""

import logging
import os
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.errors import EngineError
from waypoint.kernel.copy.confined import closing, directory_root
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.kernel.syscalls import (
    MNT_DETACH,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    clone_mount,
    move_mount,
    set_mount_attributes,
    unmount,
)
from waypoint.model import SessionRecord

__all__ = ["hide_work", "show_work", "show_work_again"]

log = logging.getLogger(__name__)

# What the session's programs make there must have no power over the host.
_ATTRIBUTES = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV


def show_work(platform: Platform, session: SessionRecord, incarnation: str) -> None:
    """Let the session's work directory, if it has one, show the files of that incarnation. Done already is fine."""
    work_dir = session.settings.work_dir
    if work_dir is None:
        return
    try:
        _show(platform, session, incarnation, Path(work_dir))
    except OSError as error:
        raise EngineError(
            f"the live files cannot be shown at {work_dir}: {error.strerror}",
            hint="make it an empty directory again; the next command shows them there",
        ) from error


def _show(platform: Platform, session: SessionRecord, incarnation: str, work_dir: Path) -> None:
    work_dir.mkdir(parents=True, exist_ok=True)
    with directory_root(platform.layout.mount(incarnation), "") as root:
        try:
            found = root.open(session.workspace, os.O_PATH | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            log.warning("%s shows nothing: there is no %s in the session", work_dir, session.workspace)
            hide_work(session)
            return
        with closing(found):
            if os.path.samestat(os.stat(work_dir), os.fstat(found)):
                return
            copy = clone_mount(found)
    with closing(copy):
        set_mount_attributes(copy, _ATTRIBUTES)
        hide_work(session)
        with closing(os.open(work_dir, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as target:
            move_mount(copy, target)
        set_mount_attributes(copy, 0)  # private again: moved below a shared mount, it has become shared too


def show_work_again(platform: Platform, session: SessionRecord, incarnation: str) -> None:
    """Let the work directory show the incarnation that it showed before; or nothing if that is no longer mounted."""
    if os.path.ismount(platform.layout.mount(incarnation)):
        show_work(platform, session, incarnation)
    else:
        hide_work(session)


def hide_work(session: SessionRecord) -> None:
    """Unmount the work directory. Programs that are still in it keep what they have. Done already is fine."""
    work_dir = session.settings.work_dir
    if work_dir is None:
        return
    while any(entry.path == work_dir and entry.fstype == "overlay" for entry in read_mounts()):
        unmount(work_dir, MNT_DETACH)
