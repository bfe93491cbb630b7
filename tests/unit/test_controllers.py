"""Which file of which cgroup tree holds a limit, on made-up trees, one for each sort of host."""

import errno
from pathlib import Path

import pytest

from waypoint.engine.limits import BranchLimits, check_limits
from waypoint.engine.platform import Platform
from waypoint.errors import AbilityMissing
from waypoint.kernel.cgroup.controllers import Controller, CpuLimit, MemoryLimit, PidsLimit, find_controllers
from waypoint.kernel.criu.program import Criu
from waypoint.model import Limits
from waypoint.store.directory_layers import OverlayLayers
from waypoint.store.layout import Layout
from waypoint.store.limit_record import read_limits


def unified(root: Path, *, enabled: str = "") -> str:
    """Make the tree of a host with only version 2; return its mountinfo."""
    root.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    (root / "cgroup.subtree_control").write_text(enabled)
    return f"30 23 0:26 / {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def hybrid(root: Path) -> str:
    """Make the trees of a host with version 1, two controllers in one, and an empty version 2; return its mountinfo."""
    (root / "unified").mkdir(parents=True)
    (root / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    return "\n".join(
        (
            f"31 23 0:27 / {root} ro - tmpfs tmpfs ro,mode=755",
            f"32 31 0:28 / {root}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            f"33 31 0:29 / {root}/memory rw - cgroup cgroup rw,memory",
            f"34 31 0:30 / {root}/pids rw shared:9 - cgroup pids rw,pids",
            f"35 31 0:31 / {root}/systemd rw - cgroup cgroup rw,name=systemd",
            f"36 31 0:32 / {root}/unified rw - cgroup2 cgroup2 rw",
        )
    )


def where(mountinfo: str) -> dict[str, tuple[int, str]]:
    found = find_controllers(mountinfo)
    return {name: (controller.version, controller.root.name) for name, controller in found.items()}


def test_each_controller_is_found_in_the_tree_that_has_it(tmp_path: Path) -> None:
    assert where(hybrid(tmp_path / "hybrid")) == {
        "cpu": (1, "cpu,cpuacct"),
        "memory": (1, "memory"),
        "pids": (1, "pids"),
    }
    assert where(unified(tmp_path / "unified")) == {
        "cpu": (2, "unified"),
        "memory": (2, "unified"),
        "pids": (2, "unified"),
    }
    twice = "\n".join((unified(tmp_path / "one"), unified(tmp_path / "two")))
    assert where(twice)["memory"] == (2, "one")
    assert where("31 23 0:27 / / rw - ext4 /dev/vda rw") == {}


def test_in_version_2_a_controller_is_enabled_once(tmp_path: Path) -> None:
    mountinfo = unified(tmp_path / "cgroup", enabled="cpu pids\n")
    control = tmp_path / "cgroup" / "cgroup.subtree_control"
    found = find_controllers(mountinfo)
    found["cpu"].enable()
    assert control.read_text() == "cpu pids\n"
    found["memory"].enable()
    assert control.read_text() == "+memory"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EBUSY, "move them into a group below"), (errno.EROFS, "let this container write")],
)
def test_a_controller_that_cannot_be_enabled_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    memory = find_controllers(unified(tmp_path / "cgroup"))["memory"]

    def refuse(_self: Path, _text: str) -> int:
        raise OSError(number, "refused")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(AbilityMissing, match="'memory' cannot be enabled") as refused:
        memory.enable()
    assert remedy in refused.value.hint


def files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_memory_is_limited_together_with_swap(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory, names in (
        (first, ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
        (second, ("memory.max", "memory.swap.max")),
    ):
        directory.mkdir()
        for name in names:
            (directory / name).write_text("")
    (second / "memory.current").write_text("1000\n")
    assert MemoryLimit(first, 1).set(1 << 20) == 1 << 20
    assert files(first) == dict.fromkeys(("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "1048576")
    assert MemoryLimit(second, 2).set(1 << 20) == 1 << 20
    assert files(second) == {"memory.current": "1000\n", "memory.max": "1048576", "memory.swap.max": "0"}
    assert MemoryLimit(first, 1).kills == (first / "memory.oom_control", "oom_kill")
    assert MemoryLimit(second, 2).kills == (second / "memory.events", "oom_kill")


def test_without_swap_accounting_only_memory_is_limited(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text("")
    MemoryLimit(tmp_path, 1).set(1 << 20)
    assert files(tmp_path) == {"memory.limit_in_bytes": "1048576"}


def test_in_version_2_a_new_limit_below_the_usage_kills_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.reclaim").write_text("")
    in_force = MemoryLimit(tmp_path, 2).set(2000)
    assert 3000 < in_force <= 3000 + (4 << 20)
    assert files(tmp_path)["memory.reclaim"] == "1000"
    assert files(tmp_path)["memory.max"] == str(in_force)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_can_be_lifted_above_what_is_in_use(tmp_path: Path, version: int) -> None:
    usage, limit = {
        1: ("memory.usage_in_bytes", "memory.limit_in_bytes"),
        2: ("memory.current", "memory.max"),
    }[version]
    (tmp_path / limit).write_text("")
    for used, expected in ((10, "1100"), (5000, "5100")):
        (tmp_path / usage).write_text(str(used))
        MemoryLimit(tmp_path, version).set_with_reserve(1000, 100)
        assert (tmp_path / limit).read_text() == expected


def test_processors_are_limited_as_a_share_of_each_period(tmp_path: Path) -> None:
    CpuLimit(tmp_path, 1).set(1.5)
    assert files(tmp_path) == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
    CpuLimit(tmp_path, 2).set(0.01)
    assert files(tmp_path)["cpu.max"] == "1000 100000"


@pytest.mark.parametrize(
    ("version", "text"),
    [(1, "nr_throttled 3\nthrottled_time 2500000000\n"), (2, "usage_usec 9\nthrottled_usec 2500000\n")],
)
def test_waiting_for_a_processor_is_reported_in_seconds(tmp_path: Path, version: int, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert CpuLimit(tmp_path, version).throttled_s() == 2.5


def platform_on(tmp_path: Path, controllers: dict[str, Controller], cgroup2: Path) -> Platform:
    nothing = Path("/nonexistent")
    criu = Criu(command=("/nonexistent",), launcher=nothing, preload=nothing, kdat=nothing)
    return Platform(
        layout=Layout(tmp_path), layers=OverlayLayers(), criu=criu, cgroup2=cgroup2, controllers=controllers
    )


@pytest.mark.parametrize(
    ("limits", "name"),
    [(Limits(memory_bytes=1 << 30), "memory"), (Limits(cpus=1), "cpu"), (Limits(pids=99), "pids")],
)
def test_a_missing_controller_is_reported_before_anything_is_made(
    tmp_path: Path, limits: Limits, name: str
) -> None:
    platform = platform_on(tmp_path, {}, tmp_path / "cgroup")
    with pytest.raises(AbilityMissing, match=f"no cgroup controller '{name}'") as refused:
        check_limits(platform, limits)
    assert "doctor" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


LIMITS = Limits(memory_bytes=64 << 20, cpus=0.5, pids=99)


def test_on_a_host_with_only_version_2_all_limits_are_in_one_cgroup(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    controllers = dict(find_controllers(unified(root, enabled="cpu memory pids")))
    platform = platform_on(tmp_path, controllers, root)
    check_limits(platform, LIMITS)
    limits = BranchLimits(platform, LIMITS, "abc")
    own = platform.cgroup("abc").path
    assert limits.make_groups() == [own]
    (own / "memory.current").write_text("0")
    limits.impose()
    limits.impose_last()
    assert files(own) == {
        "memory.current": "0",
        "memory.max": str(64 << 20),
        "pids.max": "99",
        "cpu.max": "50000 100000",
    }
    counted = {limit.name: (limit.path, limit.key) for limit in read_limits(str(tmp_path), "abc")}
    assert counted == {
        "memory": (f"{own}/memory.events", "oom_kill"),
        "pids": (f"{own}/pids.events", "max"),
    }


def test_on_a_hybrid_host_each_limit_is_in_the_tree_of_its_controller(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    controllers = dict(find_controllers(hybrid(root)))
    for controller in controllers.values():
        controller.root.mkdir()
    platform = platform_on(tmp_path, controllers, root / "unified")
    own = platform.cgroup("abc").path
    groups = BranchLimits(platform, LIMITS, "abc").make_groups()
    assert groups == [own, *(controllers[name].root / own.name for name in ("memory", "cpu", "pids"))]
    assert BranchLimits(platform, Limits(), "def").make_groups() == [platform.cgroup("def").path]


def test_processes_are_counted_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "pids.current").write_text("7\n")
    assert PidsLimit(tmp_path).usage() == 7
    assert PidsLimit(tmp_path).refusals == (tmp_path / "pids.events", "max")
