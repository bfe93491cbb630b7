"""A CRIU that works on this kernel: the host's own, or one in a private prefix.

Debian 12's CRIU 3.17 cannot run on kernels since 6.13, and installing a newer one would upgrade the system's
libc. So the packages of a newer Debian release are unpacked, with their own libraries and dynamic loader,
into a directory of ours and started through that loader; neither the system's libraries nor apt's state are
touched. apt itself downloads and checks signatures, with a configuration of its own and an empty package
status, so that it fetches all dependencies.

The prefix appears by one rename, complete with its manifest: it is never half-made.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from waypoint.errors import AbilityMissing, HostError, ToolFailed, ToolMissing, ToolTimedOut
from waypoint.kernel.apt.packages import download, held_alone, host_codename, reason, unpack
from waypoint.kernel.apt.sources import APT_DIR, OS_RELEASE, debian_archives, read_sources
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = [
    "minimum_version",
    "CriuBuild",
    "find_host_criu",
    "find_prefix_criu",
    "parse_version",
    "provision_criu",
]

# Debian suites and the CRIU that each has at least, oldest first.
SUITES = (("trixie", (4, 1)), ("forky", (4, 2)), ("sid", (4, 2)))
MANIFEST = "waypoint-criu.json"
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}

CHECK_TIMEOUT_S = 30.0

INSTALL_HINT = "install CRIU 4.1 or newer yourself so that `criu check` passes, then run: waypoint setup"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriuBuild:
    """A usable CRIU: the words that start it, and where it is from."""

    command: tuple[str, ...]
    version: str
    origin: Literal["host", "prefix"]


def find_host_criu() -> CriuBuild | None:
    """The host's own CRIU, if it is new enough and its check of this kernel passes."""
    path = shutil.which("criu", path=CLEAN_ENV["PATH"])
    if path is None:
        return None
    version = _working_version((path,))
    return None if version is None else CriuBuild(command=(path,), version=version, origin="host")


def find_prefix_criu(prefix: Path) -> CriuBuild | None:
    """The CRIU provisioned earlier in ``prefix``. Starts no program."""
    try:
        fields = json.loads((prefix / MANIFEST).read_bytes())
        build = CriuBuild(command=tuple(fields["command"]), version=str(fields["version"]), origin="prefix")
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or not ours: provisioning makes a new one
    is_usable = parse_version(build.version) >= minimum_version() and os.access(build.command[0], os.X_OK)
    return build if is_usable else None


def provision_criu(
    prefix: Path, progress: Callable[[str], None], *, proxies: Mapping[str, str] | None = None
) -> CriuBuild:
    """Install a working CRIU in ``prefix``, or return the one that is there.

    ``proxies`` are environment variables for apt (``http_proxy`` and the like). Raises a HostError that
    names the missing thing; the prefix then is as it was.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with held_alone(prefix.with_name(prefix.name + ".lock")):
        ready = find_prefix_criu(prefix)
        if ready is not None:
            return ready
        work = prefix.with_name(prefix.name + ".new")
        _remove(work)
        try:
            return _provision(prefix, work, progress, dict(proxies or {}))
        finally:
            _remove(work)


def minimum_version(kernel: str | None = None) -> tuple[int, ...]:
    """The oldest CRIU that can save a session on ``kernel`` (default: the running one).

    4.1 is the first that knows the memory layout of Linux 6.13. Since Linux 6.16 an internet socket has no
    SO_PASSCRED, and CRIU before 4.2 gives up on every such socket, while its own check says that all is well.
    """
    return (4, 2) if parse_version(kernel or platform.release()) >= (6, 16) else (4, 1)


def parse_version(text: str) -> tuple[int, ...]:
    """``Version: 4.1.1`` as numbers; empty if there is none in ``text``."""
    match = re.search(r"\b(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _provision(
    prefix: Path, work: Path, progress: Callable[[str], None], proxies: Mapping[str, str]
) -> CriuBuild:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool, path=CLEAN_ENV["PATH"]) is None:
            raise AbilityMissing(f"CRIU cannot be downloaded without {tool}", hint=INSTALL_HINT)
    triplet = TRIPLETS.get(platform.machine())
    if triplet is None:
        raise AbilityMissing(f"no CRIU build is known for {platform.machine()}", hint=INSTALL_HINT)
    archives = debian_archives(read_sources(APT_DIR), host_codename(OS_RELEASE))
    if not archives:
        raise AbilityMissing(f"no source of Debian packages is configured in {APT_DIR}", hint=INSTALL_HINT)
    failures: list[HostError] = []
    for archive in archives:
        for suite, newest in SUITES:
            if newest < minimum_version():
                continue
            _remove(work)
            try:
                progress(f"criu: downloading from Debian {suite}")
                debs = download(("criu",), archive, suite, work, proxies=proxies)
                progress(f"criu: unpacking {len(debs)} packages")
                return _publish(unpack(debs, work), prefix, triplet)
            except (ToolFailed, ToolTimedOut, AbilityMissing) as error:
                failures.append(error)
    reasons = "; ".join(dict.fromkeys(reason(failure) for failure in failures))
    raise AbilityMissing(
        f"cannot get CRIU from the host's Debian mirror: {reasons}",
        hint=f"check the network with: apt-get update; or {INSTALL_HINT}",
    ) from failures[-1]


def _publish(root: Path, prefix: Path, triplet: str) -> CriuBuild:
    """Check what was unpacked, write its manifest, and rename it to ``prefix``."""
    command = _command(root, triplet)
    version = _working_version(command)
    if version is None:
        raise AbilityMissing("the downloaded CRIU does not work on this kernel (`criu check` fails)")
    final = tuple(word.replace(os.fspath(root), os.fspath(prefix)) for word in command)
    (root / MANIFEST).write_text(json.dumps({"command": final, "version": version}))
    os.sync()  # a power cut must not leave the manifest without the files it names
    _remove(prefix)
    root.rename(prefix)
    return CriuBuild(command=final, version=version, origin="prefix")


def _command(root: Path, triplet: str) -> tuple[str, ...]:
    libraries = [path for path in (root / "usr/lib" / triplet, root / "lib" / triplet) if path.is_dir()]
    directories = [*libraries, root / "usr/lib64", root / "lib64", root / "usr/lib", root / "lib"]
    loaders = [path for directory in directories for path in sorted(directory.glob("ld-linux-*.so.*"))]
    # An absolute link would lead to the system's loader, which does not fit these libraries.
    loader = next((path for path in loaders if path.resolve().is_relative_to(root.resolve())), None)
    program = next((path for path in (root / "usr/sbin/criu", root / "sbin/criu") if path.is_file()), None)
    if loader is None or program is None or not libraries:
        raise AbilityMissing("the downloaded packages hold no CRIU with its loader and libraries")
    search = ":".join(map(os.fspath, libraries))
    return (os.fspath(loader), "--library-path", search, os.fspath(program))


def _working_version(command: tuple[str, ...]) -> str | None:
    """The version, if it is new enough and ``criu check`` passes."""
    try:
        version = parse_version(run_tool([*command, "--version"], timeout_s=CHECK_TIMEOUT_S).stdout)
        if version < minimum_version():
            return None
        run_tool([*command, "check"], timeout_s=CHECK_TIMEOUT_S)
    except (ToolFailed, ToolMissing, ToolTimedOut):
        return None
    return ".".join(map(str, version))


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
