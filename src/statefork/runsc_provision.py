"""Find runsc, the runtime of gVisor, or fetch it where Debian's own is missing or too old.

It appears in its directory by one rename. Nothing of the system is changed: see :mod:`waypoint.kernel.apt.packages`.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from statefork.record import default_state_dir
from waypoint.errors import AbilityMissing, HostError, ToolFailed, ToolTimedOut
from waypoint.kernel.apt.packages import download, held_alone, host_codename, reason, unpack
from waypoint.kernel.apt.sources import APT_DIR, OS_RELEASE, debian_archives, read_sources
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = ["RUNSC_RELEASE_MIN", "find_runsc", "provision_runsc", "runsc_release"]

RUNSC_RELEASE_MIN = 20230000
"""The first release with the platform systrap and with file systems in memory that are part of a checkpoint."""

VERSION_TIMEOUT_S = 20.0
INSTALL_HINT = "put a current runsc on the PATH yourself"


def find_runsc() -> Path | None:
    """The host's own runsc if it is new enough, else the one provisioned earlier."""
    own = shutil.which("runsc", path=CLEAN_ENV["PATH"])
    for path in (own, _prefix() / "usr/bin/runsc"):
        if path is not None and os.access(path, os.X_OK) and runsc_release(Path(path)) >= RUNSC_RELEASE_MIN:
            return Path(path)
    return None


@cache
def runsc_release(program: Path) -> int:
    """The release date of a runsc, as a number (20240729); 0 if it prints none."""
    try:
        text = run_tool([os.fspath(program), "--version"], timeout_s=VERSION_TIMEOUT_S).stdout
    except HostError:
        return 0
    match = re.search(r"\b(20\d{6})\b", text)
    return int(match[1]) if match else 0


def provision_runsc(progress: Callable[[str], None], *, proxies: Mapping[str, str] | None = None) -> Path:
    """Return a usable runsc; download one if there is none.

    It is taken from the backports (or a newer release) of the Debian that the host's own package sources name.
    Raises a HostError that says what is missing; nothing is changed then.
    """
    prefix = _prefix()
    prefix.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with held_alone(prefix.with_name("runsc.lock")):
        found = find_runsc()
        if found is not None:
            return found
        work = prefix.with_name("runsc.new")
        shutil.rmtree(work, ignore_errors=True)
        try:
            _fetch(work, progress, dict(proxies or {}))
            shutil.rmtree(prefix, ignore_errors=True)
            (work / "root").rename(prefix)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    runsc_release.cache_clear()
    found = find_runsc()
    if found is None:
        raise AbilityMissing(f"the downloaded runsc does not run: {prefix}", hint=INSTALL_HINT)
    return found


def _fetch(work: Path, progress: Callable[[str], None], proxies: Mapping[str, str]) -> None:
    codename = host_codename(OS_RELEASE)
    archives = debian_archives(read_sources(APT_DIR), codename)
    if not archives:
        raise AbilityMissing(f"no source of Debian packages is configured in {APT_DIR}", hint=INSTALL_HINT)
    failures: list[HostError] = []
    for archive in archives:
        for suite in (f"{codename}-backports", "trixie", "sid"):
            shutil.rmtree(work, ignore_errors=True)
            try:
                progress(f"runsc: downloading from Debian {suite}")
                unpack(download(("runsc",), archive, suite, work, proxies=proxies), work)
                return
            except (ToolFailed, ToolTimedOut, AbilityMissing) as error:
                failures.append(error)
    reasons = "; ".join(dict.fromkeys(reason(failure) for failure in failures))
    raise AbilityMissing(
        f"cannot get runsc from the host's Debian mirror: {reasons}", hint=INSTALL_HINT
    ) from failures[-1]


def _prefix() -> Path:
    return default_state_dir(os.environ) / "tools" / "runsc"
