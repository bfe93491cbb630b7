"""A base for every backend that builds one, also where no registry can be reached: a Dockerfile next to an archive."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import waypoint
from statefork.errors import StateForkError, WrongUse
from waypoint.errors import NotFound, WaypointError
from waypoint.kernel.apt.packages import host_codename
from waypoint.kernel.apt.sources import OS_RELEASE
from waypoint.kernel.processes.programs import run_tool

__all__ = ["build_directory"]

NAME = "statefork-bench"
PACKAGES = ("python3", "procps")  # what the workloads and probes need
IMAGE = "statefork-bench-image"
ARCHIVE = "base.tar"
PACK_TIMEOUT_S = 600.0


@contextmanager
def build_directory(
    base: Path | None, say: Callable[[str], None], *, waypoint_state_dir: str | None = None
) -> Iterator[Path]:
    """A directory with a Dockerfile that makes ``base`` an image: a tar archive or a root directory.

    Without one it is a Debian from the host's own mirror, which Waypoint keeps for the next time.
    """
    with tempfile.TemporaryDirectory(prefix="statefork-bench-", dir="/var/tmp") as name:
        directory = Path(name) / IMAGE  # Waypoint names what it builds after the directory, and keeps it
        directory.mkdir()
        try:
            if base is None:
                _write_debian(directory / ARCHIVE, say, waypoint_state_dir)
            elif base.is_dir():
                words = (
                    "tar",
                    "--one-file-system",
                    "-C",
                    os.fspath(base),
                    "-cf",
                    f"{directory}/{ARCHIVE}",
                    ".",
                )
                run_tool(words, timeout_s=PACK_TIMEOUT_S)
            elif base.is_file():
                shutil.copyfile(base, directory / ARCHIVE)
            else:
                raise WrongUse(f"no base {base}", hint="--base is a root directory or a tar archive of one")
        except WaypointError as error:
            raise StateForkError(
                f"no base to measure with: {error}", hint=error.hint or "give one with --base"
            ) from error
        (directory / "Dockerfile").write_text(f"FROM scratch\nADD {ARCHIVE} /\n")
        yield directory


def _write_debian(archive: Path, say: Callable[[str], None], state_dir: str | None) -> None:
    with waypoint.open(state_dir) as opened:
        bases = opened.bases(os.environ)
        try:
            found = bases.find(NAME)
        except NotFound:
            say(f"bootstrapping a Debian with {', '.join(PACKAGES)}; it is kept as the base {NAME}")
            suite = host_codename(OS_RELEASE) or "bookworm"
            found = bases.bootstrap(f"debian:{suite}", include=PACKAGES, names=[NAME])
        with open(archive, "wb") as out:
            bases.export(found, out.write)
