"""Where a file is that a process of a branch watches, and that was renamed.

A file of the base has the handle of the file in the base, also when it was changed and renamed, or is below a directory
of the base that was renamed: only the layer knows where it is now. So the layer is searched, but only then.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from waypoint.engine.overlays import Overlay
from waypoint.kernel.criu.watches import LostWatch

__all__ = ["find_lost_watches"]

_REDIRECT, _ORIGIN = "trusted.overlay.redirect", "trusted.overlay.origin"
_PADDING = 3  # of a handle, before what the origin of a file is too
_TYPE, _FILE = 4, 21  # in that: the type of the handle of the file below, and that handle


def find_lost_watches(
    overlays: Sequence[Overlay], init_pid: int, layer: Path, saved_layer: Path, lost: Sequence[LostWatch]
) -> list[bytes | None]:
    """The records of watches on files of the base that were renamed; ``saved_layer`` is what was saved of ``layer``."""
    root = Path(f"/proc/{init_pid}/root")
    by_device = {overlay.device: overlay for overlay in overlays}
    records: list[bytes | None] = []
    for watch in lost:
        overlay = by_device.get(watch.device)
        candidates: Iterable[str] = ()
        if overlay is not None:
            candidates = _search_layer(saved_layer / overlay.upper.relative_to(layer), overlay, watch)
        found = next((path for path in candidates if _is_at(root, path, watch)), None)
        records.append(None if found is None else watch.found("W", found))
    return records


def _is_at(root: Path, path: str, watch: LostWatch) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(f"{root}{path}").st_ino == watch.inode
    return False


def _search_layer(upper: Path, overlay: Overlay, watch: LostWatch) -> Iterator[str]:
    """The paths that a file of the base may have now."""
    mount_point = "" if overlay.mount_point == "/" else overlay.mount_point
    content = watch.handle[_PADDING:]
    for path, below, is_directory in _walk(upper, "", ""):
        if is_directory and below and f"{watch.below}/".startswith(f"{below}/"):
            yield f"{mount_point}{path}{watch.below[len(below) :]}"
        elif not is_directory and _same_origin(f"{upper}{path}", content):
            yield f"{mount_point}{path}"


def _walk(upper: Path, path: str, below: str) -> Iterator[tuple[str, str, bool]]:
    """Everything in a layer, with the path of each directory in the base; directories after what they contain."""
    with os.scandir(f"{upper}{path}") as entries:
        for entry in entries:
            inside = f"{path}/{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                yield inside, "", False
                continue
            redirect = os.fsdecode(_attribute(entry.path, _REDIRECT))
            lower = redirect if redirect.startswith("/") else f"{below}/{redirect or entry.name}"
            yield from _walk(upper, inside, lower)
            yield inside, lower, True


def _same_origin(path: str, content: bytes) -> bool:
    origin = _attribute(path, _ORIGIN)
    return len(origin) > _FILE and (origin[_TYPE], origin[_FILE:]) == (content[_TYPE], content[_FILE:])


def _attribute(path: str, name: str) -> bytes:
    with suppress(OSError):  # it has none
        return os.getxattr(path, name, follow_symlinks=False)
    return b""
