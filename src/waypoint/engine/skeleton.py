"""What a new branch finds on its root that the base does not have: /dev, /run, our init.

It is written straight into the upper directory of the overlay before that is mounted. There everything is
ours, so no link in an untrusted base can lead a write elsewhere. Directories marked opaque hide what the
base has under the same name.
"""

import fcntl
import hashlib
import os
import shutil
import stat
from pathlib import Path

from waypoint.engine.platform import Platform
from waypoint.model import Base
from waypoint.store.layout import new_id

__all__ = ["write_skeleton"]

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


def write_skeleton(platform: Platform, base: Base, incarnation: str) -> None:
    """Fill the empty upper directory of a new branch."""
    upper = platform.layout.layer(incarnation) / "upper"
    _take_after(base.path, upper)
    for name in ("proc", "sys"):
        _mkdir(upper / name, 0o555)
    _make_dev(upper / "dev")
    run = _mkdir(upper / "run", 0o755, opaque=True)
    _mkdir(run / "lock", 0o1777)
    control = _mkdir(upper / ".waypoint", 0o755)
    _place_init(platform, control / "init")
    os.symlink("../init", _mkdir(control / "bin", 0o755) / "waypoint-here")
    _hide(platform.layout.state_dir, base, upper)


def _make_dev(dev: Path) -> None:
    _mkdir(dev, 0o755, opaque=True)
    for name, major, minor in _DEVICES:
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(dev / name, 0o666)  # mknod's mode went through the umask
    for name, target in _DEVICE_LINKS:
        os.symlink(target, dev / name)
    _mkdir(dev / "pts", 0o755)
    _mkdir(dev / "shm", 0o1777)


def _place_init(platform: Platform, target: Path) -> None:
    """Copy our init into the branch, sharing its blocks: an upgrade must not change a running branch."""
    digest = hashlib.sha256(platform.criu.launcher.read_bytes()).hexdigest()[:16]
    copy = platform.layout.init_copy(digest)
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        draft = copy.with_name(f"{digest}.{new_id()}")
        with open(platform.criu.launcher, "rb") as source, open(draft, "wb") as out:
            shutil.copyfileobj(source, out)
            out.flush()
            os.fsync(out.fileno())  # every later session takes this copy for whole
        os.rename(draft, copy)
    with open(copy, "rb") as source, open(target, "wb") as out:
        try:
            fcntl.ioctl(out, _FICLONE, source.fileno())
        except OSError:  # a file system that cannot share blocks
            shutil.copyfileobj(source, out)
    os.chmod(target, 0o755)


def _hide(path: Path, base: Base, upper: Path) -> None:
    """Let the branch see an empty directory where the base has ``path`` (the state of other sessions)."""
    inside = path.resolve()
    if not inside.is_relative_to(base.path):
        return
    at, below = upper, base.path
    for extra in sorted(
        base.extra_mounts, key=lambda extra: len(extra.path)
    ):  # the deepest one is what is seen
        if inside.is_relative_to(extra.path):
            at, below = upper.parent / "mounts" / extra.key / "upper", Path(extra.path)
    parts = inside.relative_to(below).parts
    for part in parts[:-1]:
        at, below = at / part, below / part
        if not at.exists():
            at.mkdir()
            _take_after(below, at)
    _mkdir(at / parts[-1], 0o700, opaque=True)


def _mkdir(path: Path, mode: int, *, opaque: bool = False) -> Path:
    path.mkdir()
    path.chmod(mode)
    if opaque:
        os.setxattr(path, "trusted.overlay.opaque", b"y")
    return path


def _take_after(source: Path, target: Path) -> None:
    """Give a directory of the upper layer the owner and mode of the one it covers."""
    facts = source.stat()
    os.chown(target, facts.st_uid, facts.st_gid)
    target.chmod(stat.S_IMODE(facts.st_mode))
