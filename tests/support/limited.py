"""Sessions with limits, and the limits of a branch as the kernel reports them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from waypoint import Branch, Session
from waypoint.kernel.storage.quota import Account
from waypoint.model import Limits

__all__ = ["MakeLimited", "all_ways_back", "group", "limits_in_force"]

MakeLimited = Callable[[Limits], Session]


def all_ways_back(session: Session, checkpoint: str) -> Iterator[Branch]:
    """Yield the branch as it is, then restored from the checkpoint, then a fork of the checkpoint."""
    session.snapshot(checkpoint)
    yield session.main
    session.restore(checkpoint)
    yield session.main
    yield session.fork(checkpoint)[0]


def group(branch: Branch, controller: str) -> Path:
    """The cgroup in which the kernel applies this limit to the branch."""
    platform = branch.session.context.platform
    return platform.controllers[controller].root / platform.cgroup(branch.record.incarnation).path.name


def limits_in_force(branch: Branch) -> Limits:
    """The limits the kernel applies to the first process, and so to all of the branch; for disk, its account's limit."""
    platform = branch.session.context.platform
    found = {}
    for name in ("memory", "cpu", "pids"):
        directory = group(branch, name)
        if directory.exists():
            assert str(branch.record.init_pid) in (directory / "cgroup.procs").read_text().split()
            found[name] = directory
    account = Account.of(platform.layout.layer(branch.record.incarnation))
    return Limits(
        memory_bytes=_memory(found["memory"]) if "memory" in found else None,
        cpus=_cpus(found["cpu"]) if "cpu" in found else None,
        pids=int((found["pids"] / "pids.max").read_text()) if "pids" in found else None,
        disk_bytes=account.maximum() if account.directory.exists() else None,
    )


def _memory(directory: Path) -> int:
    file = directory / "memory.limit_in_bytes"
    if not file.exists():
        return int((directory / "memory.max").read_text())
    with_swap = directory / "memory.memsw.limit_in_bytes"
    assert not with_swap.exists() or with_swap.read_text() == file.read_text()
    return int(file.read_text())


def _cpus(directory: Path) -> float:
    if (directory / "cpu.max").exists():
        quota, period = (directory / "cpu.max").read_text().split()
    else:
        quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota) / int(period)
