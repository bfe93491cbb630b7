"""Where the kernel counts what reaches the limits of an incarnation: one small file for each that has limits.

A command reads it before it runs (:mod:`waypoint.session.commands.limits_reached`), so this is kept light; in a branch
without limits a command only looks for a file that does not exist.
"""

from __future__ import annotations

import os

from waypoint.store.live import limits_path

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CountedLimit", "read_limits", "remove_record", "size_text", "write_limits"]

_UNITS = ("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)


class CountedLimit:
    """A limit: its name, its value, and where the kernel counts it (a file and a key in it, or a directory)."""

    __slots__ = ("key", "maximum", "name", "path")

    def __init__(self, name: str, maximum: int, path: str, key: str = "") -> None:
        self.name = name
        self.maximum = maximum
        self.path = path
        self.key = key


def write_limits(state_dir: str, incarnation: str, limits: Sequence[CountedLimit]) -> None:
    path = limits_path(state_dir, incarnation)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w") as out:
        for limit in limits:
            out.write(f"{limit.name}\t{limit.maximum}\t{limit.path}\t{limit.key}\n")


def read_limits(state_dir: str, incarnation: str) -> list[CountedLimit]:
    """The limits of an incarnation that can be reached; empty if it has none."""
    try:
        with open(limits_path(state_dir, incarnation)) as record:
            lines = record.read().splitlines()
    except FileNotFoundError:
        return []
    limits = []
    for line in lines:
        name, maximum, path, key = line.split("\t")
        limits.append(CountedLimit(name, int(maximum), path, key))
    return limits


def remove_record(state_dir: str, incarnation: str) -> None:
    """Remove the record of an incarnation. Done already is fine."""
    try:
        os.unlink(limits_path(state_dir, incarnation))
    except FileNotFoundError:
        return


def size_text(size_bytes: float) -> str:
    """A size as it may be written on the command line: ``256M``, ``1.5G``."""
    for unit, factor in _UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g}{unit}"
    return str(size_bytes)
