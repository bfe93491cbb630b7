"""What can this host do? Feeds ``waypoint doctor``, the tests' requirements and set-up.

Every question is asked of the kernel itself (``/proc``, ``/sys``, a call that changes nothing), not guessed
from a version, and answered with why it matters and how to get it. Nothing is left behind.
"""

import ctypes
import errno
import fcntl
import os
import platform
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import AbilityMissing, HostError
from waypoint.kernel.cgroup.controllers import find_controllers
from waypoint.kernel.cgroup.group import find_cgroup2
from waypoint.kernel.criu.provision import CriuBuild, minimum_version, parse_version
from waypoint.kernel.network.egress import require_confinement
from waypoint.kernel.network.slirp import SLIRP, TUN
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool
from waypoint.kernel.storage.quota import kernel_has_simple_quotas

__all__ = ["Ability", "can_checkpoint", "has_module", "probe_host"]

MIN_KERNEL = (5, 14)  # the first with cgroup.kill
MIN_FREE_BYTES = 1 << 30
CRIU_CHECK_TIMEOUT_S = 20.0
NAMESPACES = ("pid", "mnt", "net", "ipc", "uts")
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYS_CHROOT": 18}
USERFAULTFD_NUMBERS = {"x86_64": 323, "aarch64": 282}
PAGEMAP_SCAN = 0xC0606610


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing a host has or lacks. ``required``: without it no session can be checkpointed."""

    name: str
    found: bool
    required: bool
    detail: str
    why: str
    remedy: str


def probe_host(criu: CriuBuild | None, state_dir: Path) -> list[Ability]:
    """Every ability, found or missing. ``criu`` is the build that sessions would use, if there is one."""
    return [
        _root(),
        _kernel(),
        _namespaces(),
        _file_system("overlay", required=True, why="each branch sees the base through an overlay of its own"),
        _file_system(
            "btrfs", required=False, why="checkpoints of files cost the same however large they are"
        ),
        _loop(),
        _program("mkfs.btrfs", "btrfs-progs", required=False, why="set-up formats the storage pool with it"),
        *_cgroup(),
        *_limits(),
        _userfaultfd(),
        _dirty_tracking(),
        _criu(criu),
        _program("bash", "bash", required=True, why="it is the shell of a session on the host's own root"),
        _program("buildah", "buildah", required=False, why="builds a base from a Dockerfile"),
        _program("runc", "runc", required=False, why="the steps of a Dockerfile run in it"),
        _program(
            "mmdebstrap", "mmdebstrap", required=False, why="makes a base where no registry is reachable"
        ),
        _program(
            SLIRP,
            SLIRP,
            required=False,
            why="connects sessions (--net nat) and the steps of a Dockerfile to the network",
        ),
        _tun(),
        _confinement(),
        _libvterm(),
        _free_space(state_dir),
    ]


def can_checkpoint(abilities: list[Ability]) -> bool:
    """Whether nothing required is missing."""
    return all(ability.found for ability in abilities if ability.required)


def _root() -> Ability:
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    held = int(match[1], 16) if match else 0
    lacking = [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]
    if os.geteuid() != 0:
        detail = f"running as user {os.geteuid()}"
    else:
        detail = f"root without {', '.join(lacking)}" if lacking else "root"
    return Ability(
        name="root privileges",
        found=os.geteuid() == 0 and not lacking,
        required=True,
        detail=detail,
        why="namespaces, mounts and CRIU need them",
        remedy="run with sudo, or in a container started with --privileged",
    )


def _kernel() -> Ability:
    release = os.uname().release
    return Ability(
        name="kernel version",
        found=parse_version(release) >= MIN_KERNEL,
        required=True,
        detail=f"Linux {release}",
        why="cgroup.kill and overlays over several file systems need 5.14",
        remedy="boot a kernel >= 5.14",
    )


def _namespaces() -> Ability:
    lacking = [name for name in NAMESPACES if not Path(f"/proc/self/ns/{name}").exists()]
    return Ability(
        name="namespaces",
        found=not lacking,
        required=True,
        detail=f"missing: {' '.join(lacking)}" if lacking else " ".join(NAMESPACES),
        why="branches of one checkpoint live side by side with the same pids and ports",
        remedy="a kernel built with CONFIG_NAMESPACES and all its kinds",
    )


def _file_system(name: str, *, required: bool, why: str) -> Ability:
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    as_module = name not in known and has_module(name)
    return Ability(
        name=name if name != "overlay" else "overlayfs",
        found=name in known or as_module,
        required=required,
        detail="loadable module"
        if as_module
        else ("in the kernel" if name in known else "not supported by the kernel"),
        why=why,
        remedy=f"modprobe {name}, or a kernel with CONFIG_{name.upper()}_FS",
    )


def has_module(name: str) -> bool:
    try:
        index = Path(f"/lib/modules/{os.uname().release}/modules.dep").read_text()
    except OSError:
        return False
    return re.search(rf"/{name}\.ko", index) is not None


def _loop() -> Ability:
    present = Path("/dev/loop-control").exists()
    return Ability(
        name="loop devices",
        found=present or has_module("loop"),
        required=False,
        detail="/dev/loop-control" if present else "no /dev/loop-control",
        why="the storage pool is a file with its own btrfs where the disk has none",
        remedy="modprobe loop; in a container: give it /dev/loop-control and the loop devices",
    )


def _cgroup() -> list[Ability]:
    try:
        mount_point = find_cgroup2()
    except AbilityMissing as error:
        detail, files = str(error), set[str]()
    else:
        detail, files = _list_new_cgroup(mount_point)
    remedy = "mount -t cgroup2 cgroup2 /sys/fs/cgroup; in a container: let it write there"
    return [
        Ability(
            name=f"cgroup v2 {what}",
            found=f"cgroup.{what}" in files,
            required=True,
            detail=detail,
            why=why,
            remedy=remedy,
        )
        for what, why in (
            ("freeze", "a whole branch is stopped and woken at once"),
            ("kill", "a whole branch is ended at once, with no process left over"),
        )
    ]


def _list_new_cgroup(mount_point: Path) -> tuple[str, set[str]]:
    """The files of a new cgroup, made for this and removed; the root cgroup has neither freeze nor kill."""
    probe = mount_point / f"waypoint-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError as error:
        return f"{mount_point}: {error.strerror}", set()
    try:
        return os.fspath(mount_point), {entry.name for entry in probe.iterdir()}
    finally:
        probe.rmdir()


def _limits() -> list[Ability]:
    controllers = find_controllers()
    abilities = [
        Ability(
            name=f"{name} controller",
            found=name in controllers,
            required=False,
            detail=f"cgroup v{controllers[name].version} at {controllers[name].root}"
            if name in controllers
            else "not in any cgroup tree that is mounted here",
            why=f"sessions with a limit of {what} (--{option}) need it",
            remedy=f"a kernel with CONFIG_{config}; in a container: let it write to its cgroups",
        )
        for name, what, option, config in (
            ("memory", "memory", "memory", "MEMCG"),
            ("cpu", "processors", "cpus", "CFS_BANDWIDTH"),
            ("pids", "processes", "pids", "CGROUP_PIDS"),
        )
    ]
    has_quotas = kernel_has_simple_quotas()
    quotas = Ability(
        name="btrfs simple quotas",
        found=has_quotas,
        required=False,
        detail="in the kernel" if has_quotas else "not supported by the kernel",
        why="sessions with a limit of disk space (--disk) need them",
        remedy="a kernel >= 6.7 with btrfs",
    )
    return [*abilities, quotas]


def _userfaultfd() -> Ability:
    number = USERFAULTFD_NUMBERS.get(platform.machine())
    detail, found = "unknown architecture", False
    if number is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK)
        if fd >= 0:
            os.close(fd)
            detail, found = "system call", True
        else:
            detail = os.strerror(ctypes.get_errno())
    if not found and os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
        detail, found = "/dev/userfaultfd", True
    return Ability(
        name="userfaultfd",
        found=found,
        required=False,
        detail=detail,
        why="memory of a restored branch is loaded when it is touched, not before",
        remedy="sysctl vm.unprivileged_userfaultfd=1, or a kernel with CONFIG_USERFAULTFD",
    )


def _dirty_tracking() -> Ability:
    ways = []
    if _has_pagemap_scan():
        ways.append("PAGEMAP_SCAN")
    if re.search(r"^VmFlags:.* sd\b", Path("/proc/self/smaps").read_text(), re.MULTILINE):
        ways.append("soft-dirty")
    return Ability(
        name="dirty page tracking",
        found=bool(ways),
        required=False,
        detail=", ".join(ways) or "neither PAGEMAP_SCAN nor soft-dirty",
        why="later checkpoints can save only the memory that changed",
        remedy="a kernel >= 6.7, or one with CONFIG_MEM_SOFT_DIRTY",
    )


def _has_pagemap_scan() -> bool:
    # struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages, 4 masks
    empty_scan = bytearray(struct.pack("=12Q", 96, *[0] * 11))
    fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, PAGEMAP_SCAN, empty_scan)
    except OSError as error:
        return error.errno not in (errno.ENOTTY, errno.ENOSYS)
    finally:
        os.close(fd)
    return True


def _criu(criu: CriuBuild | None) -> Ability:
    found = False
    if criu is None:
        detail = "no CRIU that works here"
    elif parse_version(criu.version) < minimum_version():
        detail = f"{criu.version} is too old for this kernel"
    else:
        detail = f"{criu.version} ({'installed on the host' if criu.origin == 'host' else criu.command[-1]})"
        try:
            run_tool([*criu.command, "check"], timeout_s=CRIU_CHECK_TIMEOUT_S)
            found = True
        except HostError as error:
            detail += f", but its check fails: {error}"
    return Ability(
        name="CRIU",
        found=found,
        required=True,
        detail=detail,
        why="it saves and restores processes; at least 4.1 is needed, since Linux 6.16 at least 4.2",
        remedy="waypoint setup",
    )


def _program(name: str, package: str, *, required: bool, why: str) -> Ability:
    path = shutil.which(name, path=CLEAN_ENV["PATH"])
    return Ability(
        name=name,
        found=path is not None,
        required=required,
        detail=path or "not installed",
        why=why,
        remedy=f"apt-get install {package}",
    )


def _tun() -> Ability:
    return Ability(
        name="tap devices",
        found=TUN.exists(),
        required=False,
        detail=os.fspath(TUN) if TUN.exists() else f"no {TUN}",
        why="a session with --net nat has one",
        remedy="modprobe tun; in a container: give it /dev/net/tun",
    )


def _confinement() -> Ability:
    detail, remedy = "BPF on cgroups", "a kernel with CONFIG_CGROUP_BPF"
    try:
        require_confinement()
        found = True
    except AbilityMissing as error:
        found, detail, remedy = False, str(error), error.hint
    return Ability(
        name="egress rules",
        found=found,
        required=False,
        detail=detail,
        why="they keep sessions with --net nat from the host's loopback and from what --allow leaves out",
        remedy=remedy,
    )


def _libvterm() -> Ability:
    try:
        ctypes.CDLL("libvterm.so.0")
    except OSError:
        found = False
    else:
        found = True
    return Ability(
        name="libvterm",
        found=found,
        required=False,
        detail="libvterm.so.0" if found else "not installed",
        why="it works out what the screen of a terminal shows",
        remedy="apt-get install libvterm0",
    )


def _free_space(state_dir: Path) -> Ability:
    existing = state_dir.absolute()
    while not existing.exists():
        existing = existing.parent
    host = os.statvfs(existing)
    free = host.f_bavail * host.f_frsize
    return Ability(
        name="free space",
        found=free >= MIN_FREE_BYTES,
        required=True,
        detail=f"{free / (1 << 30):.1f} GiB at {existing}",
        why="bases, branches and checkpoints are kept there",
        remedy=f"free at least {MIN_FREE_BYTES >> 30} GiB, or choose another --state-dir",
    )
