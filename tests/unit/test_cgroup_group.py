"""Where cgroup v2 is mounted."""

from pathlib import Path

import pytest

from waypoint.errors import AbilityMissing
from waypoint.kernel.cgroup.group import find_cgroup2


@pytest.mark.parametrize(
    ("mountinfo", "expected"),
    [
        ("30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw", "/sys/fs/cgroup"),
        (
            "31 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
            "32 31 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
            "33 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            "/sys/fs/cgroup/unified",
        ),
    ],
)
def test_cgroup_v2_is_found_alone_and_next_to_version_1(mountinfo: str, expected: str) -> None:
    assert find_cgroup2(mountinfo) == Path(expected)


def test_a_host_without_cgroup_v2_is_an_error() -> None:
    with pytest.raises(AbilityMissing, match="cgroup v2"):
        find_cgroup2("31 23 0:27 / / rw - ext4 /dev/vda rw")
