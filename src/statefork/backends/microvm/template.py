"""A machine that was booted once, saved with its shell at the prompt, and from which all others are cloned.

Booting takes seconds, starting a saved machine a fraction of one. A template is identified by all that it was made of;
the few that were used last are kept. Every clone is given the time and random numbers of its own.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from statefork.agent import Agent
from statefork.backends.microvm.base import Base, make_disk
from statefork.backends.microvm.driver import DISK, Driver, Kernel, Shape
from statefork.backends.microvm.kernel import make_initramfs
from statefork.backends.microvm.process import VmProcess
from statefork.backends.microvm.storage import remove_directory
from statefork.backends.sandbox.rootfs import BuiltRootfs
from statefork.errors import BackendFailed
from waypoint.errors import Busy, HostError, ToolMissing
from waypoint.session.context import launcher_path
from waypoint.shell.client import ShellClient
from waypoint.shell.selection import find_profile
from waypoint.store.lock import locked

__all__ = ["Recipe", "drop_half_made", "locked_template"]

KEPT = 4
BOOT_TIMEOUT_S = 180.0  # by emulation, on a busy host

Connector = Callable[[Path, float], ShellClient]
"""Connects to the init of the machine in a directory, waiting so long for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that a template is made of."""

    driver: Driver
    kernel: Kernel
    base: Base
    shape: Shape
    disk_mb: int

    def key(self) -> str:
        program = hashlib.sha256(launcher_path().read_bytes()).hexdigest()
        parts = (self.driver.name, self.driver.identity(), self.kernel.version, self.base.identity())
        return hashlib.sha256(repr((parts, self.shape, self.disk_mb, program)).encode()).hexdigest()[:16]


@contextmanager
def locked_template(root: Path, recipe: Recipe, connect: Connector) -> Iterator[Path]:
    """The directory of the template in the storage ``root``, made if there is none. Raises BackendFailed.

    It is not removed while the block lasts; copies of it share its blocks and stay whole when it is removed.
    """
    templates = root / "templates"
    templates.mkdir(mode=0o700, exist_ok=True)
    found = templates / recipe.key()
    lock = templates / "lock"
    while True:
        with locked(lock, what="the templates of microVMs", shared=True):
            if found.is_dir():
                os.utime(found)
                yield found
                return
        with locked(lock, what="the templates of microVMs") as held:
            if not found.is_dir():
                _drop_half_made(templates)
                _drop_old(templates)
                _make(templates / f".{found.name}", found, recipe, connect, held)


def drop_half_made(root: Path) -> None:
    """Remove what a killed process had begun to make, unless someone is at work: then the next caller does it."""
    templates = root / "templates"
    if templates.is_dir():
        with suppress(Busy), locked(templates / "lock", what="the templates of microVMs", wait=False):
            _drop_half_made(templates)


def _make(work: Path, found: Path, recipe: Recipe, connect: Connector, lock: int) -> None:
    (work / "machine").mkdir(parents=True)
    (work / "saved").mkdir()
    try:
        _boot_and_save(work, recipe, connect, lock)
        (work / "saved").rename(found)
    except ToolMissing as error:
        raise BackendFailed(
            "microvm", "making a template", str(error), hint="apt-get install e2fsprogs"
        ) from error
    except HostError as error:
        raise BackendFailed("microvm", "making a template", str(error), hint=error.hint) from error
    finally:
        remove_directory(work)


def _boot_and_save(work: Path, recipe: Recipe, connect: Connector, lock: int) -> None:
    machine, saved, initramfs = work / "machine", work / "saved", work / "initramfs"
    with recipe.base.opened(work / "base", _build_for(work, lock)) as rootfs:
        profile, user = find_profile(rootfs.path, None), rootfs.shell_user()
        make_disk(machine / DISK, rootfs.path, recipe.disk_mb)
    make_initramfs(initramfs, launcher_path(), recipe.kernel, recipe.driver.modules)
    process = recipe.driver.boot(machine, recipe.kernel, initramfs, recipe.shape)
    try:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        agent = Agent("microvm", "template", lambda: connect(machine, deadline - time.monotonic()))
        try:
            agent.open_shell(profile, cwd=rootfs.workdir, env=rootfs.env, user=user)
        except BackendFailed as error:
            said = recipe.driver.last_words(machine)
            raise BackendFailed(
                "microvm", "boot", f"{error.reason}; its console says: {said or 'nothing'}"
            ) from error
        recipe.driver.save(machine, saved)
    finally:
        process.end()


def _build_for(work: Path, *hold: int) -> BuiltRootfs:
    """The names under which a template is built, always the same: what a killed process left is found by them."""
    name = f"statefork-{hashlib.sha256(os.fsencode(work)).hexdigest()[:16]}"
    return BuiltRootfs(container=name, image=f"localhost/{name}:base", hold=hold)


def _drop_half_made(templates: Path) -> None:
    """Remove unfinished templates. They are of killed processes, since we hold the lock."""
    for work in templates.glob(".*"):
        if (process := VmProcess.noted_in(work / "machine")) is not None:
            process.end()
        if BuiltRootfs.is_possible():
            _build_for(work).remove(with_image=True)
        remove_directory(work)


def _drop_old(templates: Path) -> None:
    """Remove the templates that were not used for longest, so that one more can be kept."""
    ready = sorted(
        (path for path in templates.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    for path in ready[: max(0, len(ready) - KEPT + 1)]:
        shutil.rmtree(path)
