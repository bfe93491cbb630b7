"""Hide paths of the base from a branch, by marks in the upper layer, which nothing inside can reach.

A directory becomes an empty one (*opaque*: the overlay does not look below it), all else a *whiteout*, as if
it had been deleted. Programs may make their own there. A few files are needed for more than the secrets in
them; of those the branch gets a copy without the secrets.

The marks are part of the layer, hence of every checkpoint and fork.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from waypoint.model import Base

__all__ = ["copy_owner_and_mode", "hide_paths", "outermost"]

CENSORED_BYTES_MAX = 1 << 20

_NPM_SECRET = re.compile(rb"\s*([^=]*(_auth|_authtoken|_password)\s*=|[^=]*=[^=]*://[^/@]*@)", re.IGNORECASE)


def hide_paths(paths: Iterable[str], base: Base, upper: Path) -> None:
    """Hide what the base has at ``paths``, now and later. The paths have no links."""
    made: dict[str, str | None] = {os.fspath(base.path): os.fspath(upper)}
    for extra in base.extra_mounts:
        made[extra.path] = os.fspath(upper.parent / "mounts" / extra.key / "upper")
    for path in outermost(paths):
        if not Path(path).is_relative_to(base.path):
            continue
        at = _mirror_directory(os.path.dirname(path), made)
        if at is not None:
            _cover(path, os.path.join(at, os.path.basename(path)))


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths without those that lie below another."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return kept


def copy_owner_and_mode(source: str | Path, target: str | Path) -> None:
    """Give ``target``, made in the upper layer, the owner and mode of ``source``, which it covers."""
    facts = os.stat(source)
    os.chown(target, facts.st_uid, facts.st_gid)
    os.chmod(target, stat.S_IMODE(facts.st_mode))


def _mirror_directory(directory: str, made: dict[str, str | None]) -> str | None:
    """Make a directory of the base in the upper layer; return its path, or None if the base no longer has it.

    ``made`` remembers the answers.
    """
    if directory not in made:
        parent = _mirror_directory(os.path.dirname(directory), made)
        if parent is None or not os.path.isdir(directory):
            made[directory] = None
        else:
            made[directory] = at = os.path.join(parent, os.path.basename(directory))
            os.mkdir(at)
            copy_owner_and_mode(directory, at)
    return made[directory]


def _cover(covered: str, at: str) -> None:
    """Put at ``at``, in the upper layer, what a branch sees instead of ``covered``."""
    try:
        mode = os.lstat(covered).st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISDIR(mode):
        os.mkdir(at)
        copy_owner_and_mode(covered, at)
        os.setxattr(at, "trusted.overlay.opaque", b"y")
        return
    censor = _censor_for(covered)
    content = _read(covered) if censor and stat.S_ISREG(mode) else None
    if censor is None or content is None:
        os.mknod(at, stat.S_IFCHR, os.makedev(0, 0))
        return
    with open(at, "xb") as file:
        file.writelines(map(censor, content.splitlines(keepends=True)))
    copy_owner_and_mode(covered, at)


def _read(path: str) -> bytes | None:
    """The content of a small file; None if it is too large, or has become something else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        content = file.read(CENSORED_BYTES_MAX + 1)
    return content if len(content) <= CENSORED_BYTES_MAX else None


def _censor_for(path: str) -> Callable[[bytes], bytes] | None:
    if path in ("/etc/shadow", "/etc/gshadow"):
        return _without_hash
    return _without_npm_secret if os.path.basename(path) == ".npmrc" else None


def _without_hash(line: bytes) -> bytes:
    """A line of shadow or gshadow with its password locked; a line without a password stays as it is."""
    name, colon, rest = line.partition(b":")
    secret, second, tail = rest.partition(b":")
    return name + colon + (b"!" if secret.strip(b"!*\n") else secret) + second + tail


def _without_npm_secret(line: bytes) -> bytes:
    return b"" if _NPM_SECRET.match(line) else line
