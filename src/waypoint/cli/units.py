"""Sizes and ages, as people read them."""

import time

__all__ = ["age", "megabytes"]


def age(moment: float) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = max(0, int(time.time() - moment))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def megabytes(size_bytes: int) -> str:
    if size_bytes >= 1 << 20:
        return f"{size_bytes / (1 << 20):.1f} MiB"
    return f"{size_bytes / 1024:.0f} KiB"
