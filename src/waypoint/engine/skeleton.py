"""What we add to the root of a new branch: /dev, /run, our init.

It is written straight into the upper directory of the overlay before that is mounted. There everything is
ours, so no link in an untrusted base can lead a write elsewhere. Directories marked opaque hide what the
base has under the same name.
"""

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.engine.whiteouts import copy_owner_and_mode, hide_paths
from waypoint.kernel.processes.programs import run_tool
from waypoint.model import SessionRecord
from waypoint.store.layout import new_id

__all__ = ["make_devices", "renew_skeleton", "write_skeleton"]

_DEVICES = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)
_DEVICE_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)
_FICLONE = 0x40049409
REMOVE_TIMEOUT_S = 600.0


def write_skeleton(platform: Platform, session: SessionRecord, incarnation: str) -> None:
    """Fill the empty upper directory of a new branch."""
    upper = platform.layout.layer(incarnation) / "upper"
    copy_owner_and_mode(session.base.path, upper)
    for name in ("proc", "sys"):
        _mkdir(upper / name, 0o555)
    make_devices(_mkdir(upper / "dev", 0o755, opaque=True))
    run = _mkdir(upper / "run", 0o755, opaque=True)
    _mkdir(run / "lock", 0o1777)
    _write_control(platform, upper)
    state_dir = os.fspath(platform.layout.state_dir.resolve())
    hide_paths((state_dir, *session.settings.hidden), session.base, upper)


def renew_skeleton(platform: Platform, incarnation: str) -> None:
    """Prepare saved files for a new start of our init: what its last run left is of no use, or was changed.

    Programs inside could do with these files what they liked, so no link in them is followed.
    """
    upper = platform.layout.layer(incarnation) / "upper"
    # A tree of any depth may be there by now.
    run_tool(("rm", "-rf", "--", os.fspath(upper / ".waypoint")), timeout_s=REMOVE_TIMEOUT_S)
    _write_control(platform, upper)
    dev = upper / "dev"
    if dev.is_dir() and not dev.is_symlink():
        _make_nodes(dev, [device for device in _DEVICES if not os.path.lexists(dev / device[0])])


def _write_control(platform: Platform, upper: Path) -> None:
    control = _mkdir(upper / ".waypoint", 0o755)
    _copy_init(platform, control / "init")
    os.symlink("../init", _mkdir(control / "bin", 0o755) / "waypoint-here")


def make_devices(dev: Path) -> None:
    """Fill an empty directory with what every ``/dev`` has."""
    _make_nodes(dev, _DEVICES)
    for name, target in _DEVICE_LINKS:
        os.symlink(target, dev / name)
    _mkdir(dev / "pts", 0o755)
    _mkdir(dev / "shm", 0o1777)


def _make_nodes(dev: Path, devices: Iterable[tuple[str, int, int]]) -> None:
    for name, major, minor in devices:
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(dev / name, 0o666)  # mknod's mode went through the umask


def _copy_init(platform: Platform, target: Path) -> None:
    """Copy our init into the branch, sharing its blocks: an upgrade must not change a running branch."""
    digest = hashlib.sha256(platform.criu.launcher.read_bytes()).hexdigest()[:16]
    copy = platform.layout.init_copy(digest)
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        draft = copy.with_name(f"{digest}.{new_id()}")
        with open(platform.criu.launcher, "rb") as source, open(draft, "wb") as out:
            shutil.copyfileobj(source, out)
            out.flush()
            os.fsync(out.fileno())  # every later session takes this copy to be complete
        os.rename(draft, copy)
    with open(copy, "rb") as source, open(target, "wb") as out:
        try:
            fcntl.ioctl(out, _FICLONE, source.fileno())
        except OSError:  # a file system that cannot share blocks
            shutil.copyfileobj(source, out)
    os.chmod(target, 0o755)


def _mkdir(path: Path, mode: int, *, opaque: bool = False) -> Path:
    path.mkdir()
    path.chmod(mode)
    if opaque:
        os.setxattr(path, "trusted.overlay.opaque", b"y")
    return path
