"""A small Debian root file system for the tests of containers, sandboxes and virtual machines.

It is made once per machine, from the mirror that the host itself uses, and kept as a tar archive.
"""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from waypoint.kernel.apt.sources import debian_archives, read_sources
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = ["base_tar"]

SUITE = "bookworm"
PACKAGES = ("iproute2", "procps", "python3")
KEPT = Path("/var/tmp/statefork-test-base")
SECONDS_MAX = 900.0


def base_tar() -> Path:
    """A tar archive of Debian with Python, procps and iproute2."""
    name = hashlib.sha256(f"{SUITE} {' '.join(PACKAGES)}".encode()).hexdigest()[:16]
    KEPT.mkdir(exist_ok=True)
    made = KEPT / f"{name}.tar"
    with open(KEPT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(made)
    return made


def _make(tar: Path) -> None:
    archive = debian_archives(read_sources(Path("/etc/apt")), SUITE)[0]
    draft = tar.with_suffix(".new")
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    # Unpacking is bound by fsync: in memory it takes a third of the time.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as room:
        run_tool(
            (
                *("mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io"),
                *(f"--include={','.join(PACKAGES)}", "--format=tar", SUITE, os.fspath(draft), archive.uri),
            ),
            timeout_s=SECONDS_MAX,
            env={**CLEAN_ENV, **proxies, "TMPDIR": room},
        )
    draft.rename(tar)
