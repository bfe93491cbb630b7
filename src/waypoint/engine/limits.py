"""What a branch may use at most: the limits of a session, imposed on each incarnation of its branches.

Memory, processors and processes are limited through cgroups (:mod:`waypoint.kernel.cgroup.controllers`), the space in
the pool through an account of the file system (:mod:`waypoint.engine.disk_limit`). A restore imposes them when everything
is restored and nothing runs yet: until then CRIU works inside the branch's cgroups. While a branch is stopped
for a checkpoint, what CRIU adds to it does not count against its limits.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from waypoint.engine.disk_limit import (
    recount_space_left,
    remove_count_copy,
    require_accounts,
    save_space_left,
    saved_space_left,
    set_space_left,
)
from waypoint.engine.platform import Platform
from waypoint.errors import AbilityMissing, UsageError
from waypoint.kernel.cgroup.controllers import Controller, CpuLimit, MemoryLimit, PidsLimit
from waypoint.kernel.cgroup.group import remove_group
from waypoint.kernel.storage.quota import Account
from waypoint.model import Limits
from waypoint.store.limit_record import CountedLimit, remove_record, size_text, write_limits

__all__ = ["BranchLimits", "check_limits", "remove_limits"]

log = logging.getLogger(__name__)

MIN_MEMORY_BYTES = 16 << 20  # init, a shell and a small program take about half of it
MIN_CPUS = 0.01  # the kernel's own minimum: a millisecond in each period
MIN_PIDS = 8  # init, a shell, and a small pipeline
MAX_PIDS = 1 << 22  # the kernel's own maximum
MIN_DISK_BYTES = 16 << 20  # below that, metadata of the file system would be most of it
MAX_BYTES = 1 << 50
RESERVE_FOR_CRIU_BYTES = 16 << 20


def check_limits(platform: Platform, limits: Limits) -> None:
    """Raise UsageError for what makes no sense, AbilityMissing for what this host cannot do."""
    _check("memory", limits.memory_bytes, MIN_MEMORY_BYTES, MAX_BYTES, size_text)
    _check("cpus", limits.cpus, MIN_CPUS, os.cpu_count() or 1, "{:g}".format)
    _check("pids", limits.pids, MIN_PIDS, MAX_PIDS, "{:.0f}".format)
    _check("disk", limits.disk_bytes, MIN_DISK_BYTES, MAX_BYTES, size_text)
    for name in _needed_controllers(limits):
        _controller(platform, name).enable()
    if limits.disk_bytes is not None:
        require_accounts(platform.layout)


def _check(name: str, value: float | None, least: float, most: float, text: Callable[[float], str]) -> None:
    # Written so that NaN, which compares with nothing, is refused too.
    if value is not None and not least <= value <= most:
        raise UsageError(
            f"a {name} limit of {text(value)} is out of range",
            hint=f"at least {text(least)}, at most {text(most)}",
        )


def _needed_controllers(limits: Limits) -> list[str]:
    asked = {"memory": limits.memory_bytes, "cpu": limits.cpus, "pids": limits.pids}
    return [name for name, value in asked.items() if value is not None]


def _controller(platform: Platform, name: str) -> Controller:
    try:
        return platform.controllers[name]
    except KeyError:
        raise AbilityMissing(
            f"this host has no cgroup controller {name!r}, which that limit needs",
            hint="use a kernel and a container that have it; waypoint doctor shows the controllers",
        ) from None


class BranchLimits:
    """The limits of one incarnation. For a limit that is not set, nothing is done and nothing is read."""

    def __init__(self, platform: Platform, limits: Limits, incarnation: str) -> None:
        self._platform = platform
        self._limits = limits
        self._incarnation = incarnation
        self._layer = platform.layout.layer(incarnation)
        self._raised_from: int | None = None  # the account's maximum before
        self._is_raised = False

    def make_groups(self) -> list[Path]:
        """Make the cgroups that its processes start in; the first one holds them all.

        Its layer exists already. On failure parts may exist: remove_limits() removes them.
        """
        own = self._platform.cgroup(self._incarnation)
        own.create()
        groups = [own.path]
        for name in _needed_controllers(self._limits):
            _controller(self._platform, name).enable()
            group = self._group(name)
            if group not in groups:  # on a host with cgroup version 2 only, they are all the same
                group.mkdir()
                groups.append(group)
        counted = self._counted_limits()
        if counted:
            write_limits(str(self._platform.layout.state_dir), self._incarnation, counted)
        return groups

    def impose(self, *, checkpoint: str | None = None) -> None:
        """Hold the branch to its limits, before any of its processes runs.

        A branch from a checkpoint has as much of its disk limit left as it had then.
        """
        if checkpoint is None:
            self._impose_memory()
        elif self._limits.memory_bytes is not None:
            # CRIU's own memory counts here, and the processes need some for the last steps of their restore.
            # If one were killed for that, CRIU would wait for it for ever.
            self._memory().set_with_reserve(self._limits.memory_bytes, RESERVE_FOR_CRIU_BYTES)
        if self._limits.pids is not None:
            PidsLimit(self._group("pids")).set(self._limits.pids)
        if self._limits.disk_bytes is not None:
            self._impose_disk(self._limits.disk_bytes, checkpoint)

    def impose_last(self) -> None:
        """Impose the limits that would slow or stop CRIU; call it when CRIU has left the groups."""
        self._impose_memory()
        if self._limits.cpus is not None:
            CpuLimit(self._group("cpu"), self._version("cpu")).set(self._limits.cpus)

    def raise_for_criu(self) -> None:
        """Raise the limits while the processes are stopped: CRIU needs memory in them, and names deleted files."""
        if self._limits.disk_bytes is not None:
            account = Account.of(self._layer)
            self._raised_from = account.maximum() or 0
            account.set_maximum(max(self._raised_from, account.taken()) + RESERVE_FOR_CRIU_BYTES)
        self._is_raised = True
        if self._limits.memory_bytes is not None:
            self._memory().set_with_reserve(self._limits.memory_bytes, RESERVE_FOR_CRIU_BYTES)

    def lower_after_criu(self) -> None:
        """Set the limits back to what they were before raise_for_criu(). Done already is fine."""
        if not self._is_raised:
            return
        self._is_raised = False
        if self._limits.disk_bytes is not None:
            Account.of(self._layer).set_maximum(self._raised_from)
        self._impose_memory()

    def save_space_left(self, checkpoint: str) -> None:
        """Save with a checkpoint how much of the disk limit is left. The branch is stopped."""
        if self._limits.disk_bytes is not None:
            account = Account.of(self._layer)
            maximum = self._raised_from if self._is_raised else account.maximum()
            save_space_left(self._platform.layout, checkpoint, max(0, (maximum or 0) - account.taken()))

    def impose_again(self) -> None:
        """Impose them after a checkpoint that was cut off, whatever it left. The branch runs, and its lock is held."""
        self._impose_memory()
        if self._limits.disk_bytes is not None:
            limit, layout = self._limits.disk_bytes, self._platform.layout
            cgroup = self._platform.cgroup(self._incarnation)
            recount_space_left(layout, self._incarnation, limit, cgroup, may_be_raised=True)

    def _impose_disk(self, limit: int, checkpoint: str | None) -> None:
        if checkpoint is None:
            # Of the whole account, not of its growth: small files that wait to be written take less once they are.
            Account.of(self._layer).set_maximum(limit)
        else:
            set_space_left(
                self._layer, saved_space_left(self._platform.layout, checkpoint, limit, self._layer)
            )

    def _impose_memory(self) -> None:
        limit = self._limits.memory_bytes
        if limit is None:
            return
        in_force = self._memory().set(limit)
        if in_force > limit:
            # A checkpoint that cannot be restored would be worse. It can hardly grow, so a hog is still stopped.
            log.warning("%s holds %s, more than its limit", self._incarnation, size_text(in_force))

    def _memory(self) -> MemoryLimit:
        return MemoryLimit(self._group("memory"), self._version("memory"))

    def _group(self, name: str) -> Path:
        return _controller(self._platform, name).root / self._platform.cgroup(self._incarnation).path.name

    def _version(self, name: str) -> int:
        return _controller(self._platform, name).version

    def _counted_limits(self) -> list[CountedLimit]:
        counted = []
        if self._limits.memory_bytes is not None:
            path, key = self._memory().kills
            counted.append(CountedLimit("memory", self._limits.memory_bytes, str(path), key))
        if self._limits.pids is not None:
            path, key = PidsLimit(self._group("pids")).refusals
            counted.append(CountedLimit("pids", self._limits.pids, str(path), key))
        if self._limits.disk_bytes is not None:
            directory = Account.of(self._layer).directory
            counted.append(CountedLimit("disk", self._limits.disk_bytes, str(directory)))
        return counted


def remove_limits(platform: Platform, incarnation: str) -> None:
    """Remove what was made for the limits of an incarnation whose processes have ended. Done already is fine."""
    own = platform.cgroup(incarnation).path
    for group in {controller.root / own.name for controller in platform.controllers.values()} - {own}:
        remove_group(group)
    remove_count_copy(platform.layout, incarnation)
    remove_record(str(platform.layout.state_dir), incarnation)
