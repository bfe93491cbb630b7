"""What a branch may use at most: the limits of a session, imposed on each incarnation of its branches.

Memory, processors and processes are limited through cgroups (:mod:`waypoint.kernel.cgroup.controllers`), the space in
the pool through an account of the file system (:mod:`waypoint.engine.disk_limit`). A restore imposes them when everything
is back and nothing runs yet: until then CRIU works inside the groups of the branch. While a branch is stopped
for a checkpoint, what CRIU puts into it is not held against it.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from waypoint.engine.disk_limit import (
    count_anew,
    forget_count,
    give_room,
    keep_room,
    require_accounts,
    saved_room,
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
ROOM_FOR_CRIU_BYTES = 16 << 20


def check_limits(platform: Platform, limits: Limits) -> None:
    """Raise UsageError for what makes no sense, AbilityMissing for what this host cannot do."""
    _check("memory", limits.memory_bytes, MIN_MEMORY_BYTES, MAX_BYTES, size_text)
    _check("cpus", limits.cpus, MIN_CPUS, os.cpu_count() or 1, "{:g}".format)
    _check("pids", limits.pids, MIN_PIDS, MAX_PIDS, "{:.0f}".format)
    _check("disk", limits.disk_bytes, MIN_DISK_BYTES, MAX_BYTES, size_text)
    for name in _needed(limits):
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


def _needed(limits: Limits) -> list[str]:
    asked = {"memory": limits.memory_bytes, "cpu": limits.cpus, "pids": limits.pids}
    return [name for name, value in asked.items() if value is not None]


def _controller(platform: Platform, name: str) -> Controller:
    try:
        return platform.controllers[name]
    except KeyError:
        raise AbilityMissing(
            f"this host has no cgroup controller {name!r}, without which it cannot keep that limit",
            hint="a kernel and a container that have it; waypoint doctor shows which there are",
        ) from None


class BranchLimits:
    """The limits of one incarnation. Where there are none, nothing is done and nothing is looked at."""

    def __init__(self, platform: Platform, limits: Limits, incarnation: str) -> None:
        self._platform = platform
        self._limits = limits
        self._incarnation = incarnation
        self._layer = platform.layout.layer(incarnation)
        self._raised_from: int | None = None  # the account's maximum
        self._is_raised = False

    def make_groups(self) -> list[Path]:
        """Make the groups that its processes are to be born in; first the one that holds them all.

        Its layer is there already. On failure parts may exist: remove_limits() takes them away.
        """
        own = self._platform.cgroup(self._incarnation)
        own.create()
        groups = [own.path]
        for name in _needed(self._limits):
            _controller(self._platform, name).enable()
            group = self._group(name)
            if group not in groups:  # on a host with version 2 only they are all the same
                group.mkdir()
                groups.append(group)
        counted = self._counted()
        if counted:
            write_limits(str(self._platform.layout.state_dir), self._incarnation, counted)
        return groups

    def impose(self, *, checkpoint: str | None = None) -> None:
        """Hold the branch to its limits, before any of its processes runs.

        One that comes from a checkpoint has left of its disk limit what was left then.
        """
        if checkpoint is None:
            self._impose_memory()
        elif self._limits.memory_bytes is not None:
            # CRIU counts in it, and the last steps of the processes to where they were need some memory too.
            # One that is killed for that would let CRIU wait for it for ever.
            self._memory().set_with_room(self._limits.memory_bytes, ROOM_FOR_CRIU_BYTES)
        if self._limits.pids is not None:
            PidsLimit(self._group("pids")).set(self._limits.pids)
        if self._limits.disk_bytes is not None:
            self._impose_disk(self._limits.disk_bytes, checkpoint)

    def impose_last(self) -> None:
        """When CRIU, which they would slow or stop, has left the groups."""
        self._impose_memory()
        if self._limits.cpus is not None:
            CpuLimit(self._group("cpu"), self._version("cpu")).set(self._limits.cpus)

    def raise_for_criu(self) -> None:
        """While its processes are stopped: CRIU needs memory in them, and names deleted files in the layer."""
        if self._limits.disk_bytes is not None:
            account = Account.of(self._layer)
            self._raised_from = account.maximum() or 0
            account.set_maximum(max(self._raised_from, account.taken()) + ROOM_FOR_CRIU_BYTES)
        self._is_raised = True
        if self._limits.memory_bytes is not None:
            self._memory().set_with_room(self._limits.memory_bytes, ROOM_FOR_CRIU_BYTES)

    def put_back(self) -> None:
        """As they were before they were raised; done already is fine."""
        if not self._is_raised:
            return
        self._is_raised = False
        if self._limits.disk_bytes is not None:
            Account.of(self._layer).set_maximum(self._raised_from)
        self._impose_memory()

    def keep_room(self, checkpoint: str) -> None:
        """Write down with a checkpoint how much of the disk limit is left. The branch is stopped."""
        if self._limits.disk_bytes is not None:
            account = Account.of(self._layer)
            maximum = self._raised_from if self._is_raised else account.maximum()
            keep_room(self._platform.layout, checkpoint, max(0, (maximum or 0) - account.taken()))

    def impose_again(self) -> None:
        """Whatever state a checkpoint that was cut off has left them in. The branch runs, its lock is held."""
        self._impose_memory()
        if self._limits.disk_bytes is not None:
            limit, layout = self._limits.disk_bytes, self._platform.layout
            cgroup = self._platform.cgroup(self._incarnation)
            count_anew(layout, self._incarnation, limit, cgroup, may_be_raised=True)

    def _impose_disk(self, limit: int, checkpoint: str | None) -> None:
        if checkpoint is None:
            # All that is on the account, not so much more: small files that wait to be written take less when they are.
            Account.of(self._layer).set_maximum(limit)
        else:
            give_room(self._layer, saved_room(self._platform.layout, checkpoint, limit, self._layer))

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

    def _counted(self) -> list[CountedLimit]:
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
    forget_count(platform.layout, incarnation)
    remove_record(str(platform.layout.state_dir), incarnation)
