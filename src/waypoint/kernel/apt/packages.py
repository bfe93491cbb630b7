"""Debian packages that apt downloads and dpkg unpacks, but that are not installed.

apt checks signatures. It has a configuration of its own, and an empty package status so that it fetches all
dependencies; neither the system's libraries nor apt's state are touched.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from waypoint.errors import AbilityMissing, HostError, ToolFailed
from waypoint.kernel.apt.sources import AptSource
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = ["download", "held_alone", "host_codename", "reason", "unpack"]

UPDATE_TIMEOUT_S = 300.0
DOWNLOAD_TIMEOUT_S = 900.0
UNPACK_TIMEOUT_S = 120.0


def download(
    packages: Sequence[str],
    archive: AptSource,
    suite: str,
    work: Path,
    *,
    proxies: Mapping[str, str],
) -> list[Path]:
    """Download packages of a suite, with all they depend on, into the empty directory ``work``.

    ``proxies`` are environment variables for apt. Raises ToolFailed, ToolTimedOut or AbilityMissing.
    """
    for name in ("lists/partial", "archives/partial", "dpkg", "log"):
        (work / name).mkdir(parents=True)
    (work / "dpkg" / "status").touch()
    (work / "debian.sources").write_text(_sources_text(archive, suite))
    config = work / "apt.conf"
    config.write_text(_apt_config(work))
    env = {**CLEAN_ENV, **proxies, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", f"-c={config}"]
    run_tool([*apt, "update"], timeout_s=UPDATE_TIMEOUT_S, env=env)
    run_tool([*apt, "install", "-y", "--download-only", *packages], timeout_s=DOWNLOAD_TIMEOUT_S, env=env)
    debs = sorted((work / "archives").glob("*.deb"))
    if not debs:
        raise AbilityMissing(f"apt downloaded nothing from suite {suite}")
    return debs


def _sources_text(archive: AptSource, suite: str) -> str:
    lines = ["Types: deb", f"URIs: {archive.uri}", f"Suites: {suite}", "Components: main"]
    if archive.signed_by is not None:
        lines.append(f"Signed-By: {archive.signed_by}")
    return "\n".join(lines) + "\n"


def _apt_config(work: Path) -> str:
    """apt's settings for ``work`` alone, read after the host's own (which may name a proxy).

    Hooks are cleared: those of container images delete downloaded packages. Everything runs as root since
    apt's own user cannot enter a private state directory; what is downloaded is trusted by its signature.
    """
    cleared = (
        "APT::Update::Pre-Invoke",
        "APT::Update::Post-Invoke",
        "APT::Update::Post-Invoke-Success",
        "DPkg::Pre-Invoke",
        "DPkg::Post-Invoke",
        "DPkg::Pre-Install-Pkgs",
        "APT::Default-Release",
        "APT::Architectures",
        "Dir::Cache::pkgcache",
        "Dir::Cache::srcpkgcache",
    )
    values = {
        "Dir::Etc::SourceList": work / "debian.sources",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::status": work / "dpkg" / "status",
        "Dir::State::extended_states": work / "extended_states",
        "Dir::Cache": work,
        "Dir::Cache::archives": work / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Log": work / "log",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowDowngradeToInsecureRepositories": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
    }
    lines = [f"#clear {name};" for name in cleared]
    lines += [f'{name} "{value}";' for name, value in values.items()]
    return "\n".join(lines) + "\n"


def unpack(debs: Sequence[Path], work: Path) -> Path:
    """Unpack packages below ``work`` and return that directory; none of their scripts is run."""
    root = work / "root"
    root.mkdir()
    for deb in debs:
        run_tool(["dpkg-deb", "-x", os.fspath(deb), os.fspath(root)], timeout_s=UNPACK_TIMEOUT_S)
    return root


def host_codename(os_release: Path) -> str:
    """The name of the host's Debian release; empty if it has none."""
    try:
        text = os_release.read_text()
    except FileNotFoundError:
        return ""
    match = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', text, re.MULTILINE)
    return match[1] if match else ""


def reason(failure: HostError) -> str:
    """Why a download failed, in one line."""
    if isinstance(failure, ToolFailed):
        errors = [line for line in failure.stderr.splitlines() if line.startswith("E: ")]
        return errors[0].removeprefix("E: ") if errors else str(failure)
    return str(failure)


@contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, so that two set-ups do not work at once."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
