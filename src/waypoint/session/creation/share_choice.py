"""Check the volumes and secrets that a new session shares with the host, before anything is made."""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from waypoint.engine.shares import SECRETS, is_reserved, read_secret
from waypoint.errors import NotFound, ShareUnavailable, UsageError
from waypoint.kernel.copy.confined import is_of_the_kernel
from waypoint.model import Secret, Volume
from waypoint.names import parse_name

__all__ = ["check_secrets", "check_volumes"]


def check_volumes(volumes: Sequence[Volume], state_dir: Path, *, has_secrets: bool) -> tuple[Volume, ...]:
    """The volumes, with links in their sources resolved and their paths in one form.

    Raises UsageError or NotFound for one that cannot be shared.
    """
    checked: list[Volume] = []
    for volume in volumes:
        path = _checked_path(volume)
        if has_secrets and (path == SECRETS or path.startswith(f"{SECRETS}/")):
            raise UsageError(
                f"volume {path}: the secrets are mounted there", hint=f"choose a path outside {SECRETS}"
            )
        if any(other.path == path for other in checked):
            raise UsageError(f"two volumes at {path}", hint="give each a path of its own")
        _check_source(volume.source, state_dir)
        checked.append(replace(volume, source=os.path.realpath(volume.source), path=path))
    return tuple(checked)


def check_secrets(secrets: Sequence[Secret]) -> tuple[Secret, ...]:
    """The secrets, each of which can be read now. Raises UsageError for one that cannot."""
    for number, secret in enumerate(secrets):
        parse_name("secret", secret.name)
        if not os.path.isabs(secret.source):
            raise UsageError(
                f"secret file {secret.source!r} is not an absolute path", hint="write it in full"
            )
        if any(other.name == secret.name for other in secrets[:number]):
            raise UsageError(f"two secrets named {secret.name!r}", hint="give each a name of its own")
        try:
            read_secret(secret)
        except ShareUnavailable as error:
            raise UsageError(f"{error.share}: {error.reason}", hint="give a file that can be read") from error
    return tuple(secrets)


def _checked_path(volume: Volume) -> str:
    parts = [part for part in volume.path.split("/") if part not in ("", ".")]
    path = "/" + "/".join(parts)
    try:
        is_path = "\0" not in path and bool(path.encode())
    except UnicodeEncodeError:
        is_path = False
    if not is_path or not volume.path.startswith("/") or ".." in parts:
        raise UsageError(
            f"volume path {volume.path!a} is not an absolute path without '..'",
            hint="give a path in the session: HOST:/PATH",
        )
    if is_reserved(path):
        raise UsageError(f"a volume cannot be at {path}", hint="choose another path, such as /data")
    return path


def _check_source(source: str, state_dir: Path) -> None:
    if not os.path.isabs(source):
        raise UsageError(f"volume source {source!r} is not an absolute path", hint="write it in full")
    try:
        found = os.open(source, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise NotFound("file or directory", source, hint="a volume must exist on the host") from error
    try:
        mode = os.fstat(found).st_mode
        is_usable = (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) and not is_of_the_kernel(found)
    finally:
        os.close(found)
    if not is_usable:
        raise UsageError(
            f"volume {source}: only directories and files of a disk can be shared",
            hint="devices, sockets, /proc and /sys cannot be shared",
        )
    real = Path(source).resolve()
    if real.is_relative_to(state_dir) or state_dir.is_relative_to(real):
        raise UsageError(
            f"volume {source}: the state directory {state_dir} would be in the session",
            hint="share a directory that does not hold it",
        )
