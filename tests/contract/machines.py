"""What the tests of microVMs share: a state directory that must leave nothing behind, and what still uses it."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from statefork import ForkableEnvironmentManager, create_env_manager
from statefork.backends.microvm.storage import Storage
from support.base_image import base_tar
from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.syscalls import unmount

__all__ = ["copy_busybox", "machines_below", "new_manager", "state_directory"]


@contextmanager
def state_directory() -> Iterator[Path]:
    """A state directory for the whole test file. At its end, no mount or process of it may be left."""
    path = Path(f"/var/tmp/statefork-microvm-{secrets.token_hex(4)}")
    path.mkdir(mode=0o700)
    yield path
    assert is_released(path)
    assert machines_below(path) == []
    assert [entry.name for entry in path.iterdir()] == ["microvm"]
    if mounts_below(path):
        unmount(path / "microvm/pool")
    shutil.rmtree(path)


def new_manager(state: Path, **options: object) -> ForkableEnvironmentManager:
    manager = create_env_manager("microvm_build", base=os.fspath(base_tar()), state_dir=state, **options)
    assert isinstance(manager, ForkableEnvironmentManager)
    return manager


def mounts_below(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {path}" in line]


def is_released(path: Path) -> bool:
    """Whether we have released the storage. Other mount namespaces of this host may hold copies of our mount, which
    keep its file system alive until they end: then it stays mounted here too, for the next user."""
    deadline = time.monotonic() + 10.0
    while mounts_below(path) and not is_held_elsewhere(path) and time.monotonic() < deadline:
        Storage(path / "microvm").release()
    return mounts_below(path) == [] or is_held_elsewhere(path)


def is_held_elsewhere(path: Path) -> bool:
    ours = os.readlink("/proc/self/ns/mnt")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "ns/mnt") != ours and f" {path}" in (process / "mountinfo").read_text():
                return True
    return False


def machines_below(path: Path) -> list[int]:
    """The QEMU processes whose files are below ``path``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"qemu" in (words := entry.read_bytes()) and os.fsencode(path) in words:
                found.append(int(entry.parent.name))
    return found


def copy_busybox(root: Path) -> None:
    """Make a root file system with only busybox and its libraries."""
    libraries = run_tool(["ldd", "/bin/busybox"], timeout_s=30.0, accept=(0, 1)).stdout.split()
    for path in ["/bin/busybox", *(word for word in libraries if word.startswith("/"))]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
