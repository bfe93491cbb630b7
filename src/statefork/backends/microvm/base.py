"""What a machine's disk is made of: a directory, a tar archive, or what a Dockerfile builds."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statefork.backends.microvm.storage import remove_directory
from statefork.backends.sandbox.rootfs import BuiltRootfs, Rootfs, unpacked
from statefork.errors import BackendUnavailable, WrongUse
from waypoint.kernel.processes.programs import run_tool

__all__ = ["Base", "make_disk"]

MAKE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Where the files come from: exactly one of the two."""

    source: Path | None = None
    dockerfile_dir: Path | None = None

    @classmethod
    def chosen(cls, source: str | Path | None, dockerfile_dir: str | Path | None) -> "Base":
        """From the caller's options; without any, the Dockerfile of the current directory."""
        if source is not None and dockerfile_dir is not None:
            raise WrongUse("base= and dockerfile_dir= exclude each other")
        if source is not None:
            if not Path(source).exists():
                raise WrongUse(f"no base {source}", hint="base= is a directory or a tar archive")
            return cls(source=Path(source).absolute())
        directory = Path("." if dockerfile_dir is None else dockerfile_dir).absolute()
        if not (directory / "Dockerfile").is_file():
            raise WrongUse(
                f"no Dockerfile in {directory}",
                hint="give base= (a directory or a tar archive) or dockerfile_dir=",
            )
        if not BuiltRootfs.is_possible():
            raise BackendUnavailable("microvm", "buildah is not installed", remedy="apt-get install buildah")
        return cls(dockerfile_dir=directory)

    def identity(self) -> str:
        """Changes with the files; nothing is unpacked or built for it."""
        found = hashlib.sha256(repr(self).encode())
        source = self.source or self.dockerfile_dir
        assert source is not None
        if not source.is_dir():
            found.update(_facts(source.stat()))
        for at, directories, files in os.walk(source):
            directories.sort()
            for name in sorted([*files, *directories]):
                path = os.path.join(at, name)
                found.update(os.fsencode(path) + _facts(os.lstat(path)))
        return found.hexdigest()

    @contextmanager
    def opened(self, target: Path, build: BuiltRootfs) -> Iterator[Rootfs]:
        """The files, as a directory: unpacked into ``target``, or built and mounted as ``build``."""
        if self.source is not None:
            try:
                yield unpacked(self.source, target)
            finally:
                remove_directory(target)
            return
        assert self.dockerfile_dir is not None
        try:
            build.build(self.dockerfile_dir)
            yield build.mount()
        finally:
            build.remove(with_image=True)


def make_disk(disk: Path, root: Path, size_mb: int) -> None:
    """An ext4 disk with the files of ``root``. Blocks that are not needed take no space."""
    command = ["mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", os.fspath(root)]
    command += ["-E", "lazy_itable_init=1,lazy_journal_init=1", os.fspath(disk), f"{size_mb}M"]
    run_tool(command, timeout_s=MAKE_TIMEOUT_S)


def _facts(status: os.stat_result) -> bytes:
    return f"{status.st_ino} {status.st_mode} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}".encode()
