"""Errors of buildah, each with a hint at what to do next."""

import re
from pathlib import Path

from waypoint.errors import BuildFailed, UsageError
from waypoint.store.image_names import full_name, is_full_name, short_name

__all__ = ["build_error", "pull_error", "refuse_image_archive"]

_SOURCE = re.compile(r"docker://([^\s:@]+(?::[0-9]+)?(?:/[^\s:@]+)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?)")
_UNREACHABLE = (
    "no such host",
    "pinging container registry",
    "connection refused",
    "i/o timeout",
    "network is unreachable",
    "requested access to the resource is denied",
    "manifest unknown",
    "unauthorized",
)


def build_error(error: BuildFailed) -> BuildFailed:
    """The error of a build that failed. A base image that neither this host nor a registry has is named."""
    reason = str(error)
    missing = _missing_image(reason)
    if missing is None:
        return BuildFailed(f"Error building sandbox image: {reason}", hint=error.hint)
    return BuildFailed(
        f"Error building sandbox image: the base {missing!r} is not known here, and cannot be fetched: {reason}",
        hint=f"make it once: waypoint base bootstrap debian:bookworm --name {missing},"
        f" or waypoint base import TAR --name {missing}",
    )


def pull_error(source: str, error: BuildFailed) -> BuildFailed:
    hint = error.hint
    if _missing_image(str(error)) is not None:
        hint = (
            "is the name right, and the registry reachable from here? without one:"
            " waypoint base bootstrap debian:bookworm, or waypoint base import docker-archive:FILE"
        )
    return BuildFailed(f"cannot fetch {source}: {error}", hint=hint)


def refuse_image_archive(tree: Path, source: str) -> None:
    """Raise UsageError if what was unpacked is the archive of an image, not of a root file system."""
    entries = {entry.name for entry in tree.iterdir()}
    for mark, transport in (("oci-layout", "oci-archive"), ("manifest.json", "docker-archive")):
        if mark in entries and not {"usr", "bin", "etc"} & entries:
            raise UsageError(
                f"{source} is the archive of an image, not of a root file system",
                hint=f"waypoint base import {transport}:{source}",
            )


def _missing_image(reason: str) -> str | None:
    match = _SOURCE.search(reason)
    if match is None or not any(words in reason for words in _UNREACHABLE):
        return None
    return short_name(full_name(match[1])) if is_full_name(match[1]) else match[1]
