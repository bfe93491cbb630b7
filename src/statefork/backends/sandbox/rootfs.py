"""A root file system that sandboxes read and never write: a directory, a tar archive, or built from a Dockerfile."""

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statefork.errors import WrongUse
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool
from waypoint.session.creation.users import ROOT, User, find_user

__all__ = ["BuiltRootfs", "Rootfs", "unpacked"]

BUILD_TIMEOUT_S = 3600.0
CALL_TIMEOUT_S = 120.0
UNPACK_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rootfs:
    """Where it is, and what its image says about variables, working directory and user."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""

    def shell_user(self) -> User:
        """The user that its shells run as. Raises NotFound."""
        return find_user(os.fspath(self.path), self.user) if self.user else ROOT


def unpacked(source: Path, target: Path) -> Rootfs:
    """A directory as it is; a tar archive unpacked into ``target``."""
    if source.is_dir():
        return Rootfs(path=source)
    if not source.is_file() or not tarfile.is_tarfile(source):
        raise WrongUse(
            f"{source} is not a root file system", hint="give a directory, or a tar archive of one"
        )
    target.mkdir()
    run_tool(("tar", "-C", os.fspath(target), "-xf", os.fspath(source)), timeout_s=UNPACK_TIMEOUT_S)
    return Rootfs(path=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRootfs:
    """The root file system of an image, built by buildah, which mounts it for us without a copy.

    ``container`` is the name of buildah's container, ``image`` that of the image; ``store`` are arguments of buildah
    that choose its storage. ``hold`` are descriptors that buildah keeps open: it keeps running if we are killed, and a
    lock among them is not free before it has ended.
    """

    container: str
    image: str
    store: tuple[str, ...] = ()
    hold: tuple[int, ...] = ()

    @staticmethod
    def is_possible() -> bool:
        return shutil.which("buildah", path=CLEAN_ENV["PATH"]) is not None

    def build(self, directory: Path) -> None:
        """Build ``directory``'s Dockerfile. Raises ToolFailed with what the build printed."""
        if not (directory / "Dockerfile").is_file():
            raise WrongUse(f"no Dockerfile in {directory}", hint="name its directory: dockerfile_dir=")
        # chroot needs no container runtime, which may refuse the host's cgroups.
        options = ("--isolation", "chroot", "--tag", self.image)
        self._buildah("bud", *options, os.fspath(directory), timeout_s=BUILD_TIMEOUT_S)
        self._buildah("from", "--pull-never", "--name", self.container, self.image)

    def mount(self) -> Rootfs:
        """Mount the container's root file system, unless it is mounted already."""
        config = json.loads(self._buildah("inspect", self.container))["OCIv1"]["config"]
        env = dict(entry.split("=", 1) for entry in config.get("Env", []))
        path = Path(self._buildah("mount", self.container).strip())
        workdir, user = config.get("WorkingDir") or "/", config.get("User") or ""
        return Rootfs(path=path, env=env, workdir=workdir, user=user)

    def remove(self, *, with_image: bool) -> None:
        """Remove the container, and the image if asked; they may have been removed already."""
        known = json.loads(self._buildah("containers", "--json") or "null") or []
        if any(entry["containername"] == self.container for entry in known):
            self._buildah("umount", self.container)
            self._buildah("rm", self.container)
        if with_image:
            self._buildah("rmi", self.image, accept=(0, 1, 125))

    def _buildah(self, *words: str, timeout_s: float = CALL_TIMEOUT_S, accept: Sequence[int] = (0,)) -> str:
        command = ("buildah", *self.store, *words)
        return run_tool(command, timeout_s=timeout_s, accept=accept, pass_fds=self.hold).stdout
