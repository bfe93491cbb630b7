"""The programs and the file system that sessions need: whether this host has them, where, and in which version."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import HostError
from waypoint.kernel.criu.provision import CriuBuild
from waypoint.kernel.probe import has_module
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = ["OverlaySupport", "Program", "describe_criu", "find_buildah", "find_overlay"]

ASK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    available: bool
    path: str | None = None
    version: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySupport:
    available: bool
    kernel_version: str
    source: str | None
    error: str | None


def describe_criu(criu: CriuBuild | None) -> Program:
    if criu is None:
        return Program(available=False, error="no CRIU that works here; run: waypoint setup")
    return Program(available=True, path=criu.command[-1], version=criu.version)


def find_buildah() -> Program:
    path = shutil.which("buildah", path=CLEAN_ENV["PATH"])
    if path is None:
        return Program(available=False, error="not installed; apt-get install buildah")
    try:
        answer = run_tool([path, "--version"], timeout_s=ASK_TIMEOUT_S).stdout.strip()
    except HostError as error:
        return Program(available=False, path=path, error=str(error))
    return Program(
        available=True, path=path, version=answer.removeprefix("buildah version ").partition(" ")[0]
    )


def find_overlay() -> OverlaySupport:
    known = Path("/proc/filesystems")
    source = None
    if any(line.split()[-1:] == ["overlay"] for line in known.read_text().splitlines()):
        source = os.fspath(known)
    elif has_module("overlay"):
        source = "module"
    return OverlaySupport(
        available=source is not None,
        kernel_version=os.uname().release,
        source=source,
        error=None if source else "not supported by the kernel; try: modprobe overlay",
    )
