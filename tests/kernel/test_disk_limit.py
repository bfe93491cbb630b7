"""The limit of space in the pool: what does not fit is refused in every branch, and fits after space was freed."""

import os
from pathlib import Path

import pytest

from support.dead_file import served_file
from support.limited import MakeLimited, all_ways_back
from support.waiting import DEADLINE_S, wait_until
from waypoint import Branch, Session, Waypoint
from waypoint.errors import DiskLimitReached
from waypoint.model import Limits, Volume
from waypoint.session.commands.disk_space import RAISED_BYTES_MAX
from waypoint.session.commands.exec import CommandResult

LIMIT = 64 << 20
SLACK = 2 << 20  # what the file system itself needs


def fill(branch: Branch | Session, path: str) -> CommandResult:
    """Write until no more fits."""
    ended = branch.exec(f"dd if=/dev/urandom of={path} bs=64k count=4096", timeout_s=DEADLINE_S)
    assert ended.exit_code == 1
    assert "Disk quota exceeded" in ended.output
    assert [limit.name for limit in ended.limits_reached] == ["disk"]
    return ended


def size(branch: Branch | Session, *paths: str) -> int:
    return sum(int(branch.exec_isolated(["stat", "-c", "%s", path]).output) for path in paths)


def test_a_program_that_fills_the_disk_is_stopped_and_freed_space_can_be_used_again(
    limited: MakeLimited,
) -> None:
    session = limited(Limits(disk_bytes=LIMIT))
    session.exec("x=kept; sleep 1000 & true")
    ended = fill(session, "/root/full")
    message = "disk limit of 64M reached: nothing more can be written until files are deleted"
    assert list(map(str, ended.limits_reached)) == [message]
    assert LIMIT - SLACK < size(session, "/root/full") <= LIMIT
    assert session.exec('echo "$x $(jobs -r | wc -l)"').output == "kept 1\n"
    freed = session.exec("rm /root/full")
    assert (freed.exit_code, freed.limits_reached) == (0, ())
    assert session.exec("head -c 40M /dev/zero >/root/again").exit_code == 0


def test_deleted_space_is_not_given_out_twice(limited: MakeLimited) -> None:
    """Neither space not yet freed when the files are counted, nor that of deleted files that are still open."""
    session = limited(Limits(disk_bytes=LIMIT))
    for _ in range(2):
        ended = session.exec("head -c 200M /dev/zero >/root/full; stat -c %s /root/full; rm /root/full")
        assert int(ended.output.splitlines()[-1]) <= LIMIT
    session.exec("exec 7>/root/full; rm /root/full; head -c 200M /dev/zero >&7")
    for branch in all_ways_back(session, "full"):
        ended = branch.exec(
            "head -c 200M /dev/zero >/root/more; stat -c %s /root/more || echo 0; rm -f /root/more"
        )
        assert int(ended.output.splitlines()[-1]) <= SLACK
        branch.exec("exec 7>&-")
        assert LIMIT - SLACK < _largest(branch) <= LIMIT


HOLD = """
import mmap, os, time
os.chroot("/root")  # from here the kernel lists none of its mounts
with open("/mapped", "w+b") as mapped:
    mapped.write(bytes(24 << 20))
    mapped.flush()
    kept = mmap.mmap(mapped.fileno(), 0)
opened = open("/opened", "w+b")
opened.write(bytes(24 << 20))
opened.flush()
os.unlink("/mapped")
os.unlink("/opened")
os.mkdir("/held")
time.sleep(1000)
"""


def test_deleted_files_in_use_count_however_they_are_held(limited: MakeLimited) -> None:
    session = limited(Limits(disk_bytes=LIMIT))
    session.write_file("/root/hold.py", HOLD)
    session.exec("python3 /root/hold.py & wait_for=$!")
    wait_until(session, "[ -e /root/held ]")
    assert _largest(session) <= LIMIT - (48 << 20)
    session.exec("kill $wait_for; wait; rm /root/large")
    assert LIMIT - SLACK < _largest(session) <= LIMIT


def test_a_volume_with_a_dead_server_does_not_block_counting(
    waypoint: Waypoint, workspace: Path, leaves_nothing_behind: None, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with served_file(file) as server:
        session = waypoint.create(
            workspace, limits=Limits(disk_bytes=LIMIT), volumes=[Volume(source=str(file), path="/data")]
        )
        session.exec("exec 7</data")
        server.kill()
        server.wait()
        assert "not connected" in session.exec("cat <&7").output
        fill(session, "/root/full")
        session.exec("rm /root/full")
        assert session.exec("head -c 40M /dev/zero >/root/again").exit_code == 0
        session.cleanup(force=True)


def _largest(branch: Branch | Session) -> int:
    fill(branch, "/root/large")
    return size(branch, "/root/large")


def test_a_full_branch_still_runs_long_commands_and_many_do_not_make_it_larger(limited: MakeLimited) -> None:
    session = limited(Limits(disk_bytes=LIMIT))
    session.exec("mkdir /root/here")
    fill(session, "/root/here/full")
    assert session.exec(f": {'x' * 1_000_000}; echo taken").output == "taken\n"
    for number in range(24):
        session.exec(f"head -c 1M /dev/zero >/root/here/more{number}")
    assert int(session.exec("du -s -B1 /root/here").output.split()[0]) <= LIMIT + RAISED_BYTES_MAX
    session.exec_isolated("rm /root/here/*")
    assert session.exec("head -c 40M /dev/zero >/root/again").exit_code == 0


def test_the_disk_limit_and_usage_continue_after_a_restore_and_in_a_fork(limited: MakeLimited) -> None:
    session = limited(Limits(disk_bytes=LIMIT))
    session.exec("head -c 40M /dev/urandom >/root/early")
    for branch in all_ways_back(session, "forty"):
        fill(branch, "/root/late")
        assert LIMIT - SLACK < size(branch, "/root/early", "/root/late") <= LIMIT


def test_a_full_branch_can_be_saved_restored_and_then_emptied(limited: MakeLimited) -> None:
    session = limited(Limits(disk_bytes=LIMIT))
    # CRIU itself must write a deleted file that is still open into the layer at a checkpoint.
    session.exec("x=kept; exec 7>/root/deleted; echo said >&7; rm /root/deleted")
    fill(session, "/root/full")
    for branch in all_ways_back(session, "full"):
        assert branch.exec(f"head -c {SLACK} /dev/zero >/root/more").exit_code != 0
        branch.exec("rm -f /root/more")
        assert branch.exec("echo $x; cat /proc/$$/fd/7").output == "kept\nsaid\n"
        # The checkpoint still holds what is deleted now; even so, the branch gets its space back.
        branch.exec("rm /root/full")
        assert branch.exec("head -c 40M /dev/zero >/root/again").exit_code == 0
        fill(branch, "/root/full")
        assert LIMIT - SLACK < size(branch, "/root/full", "/root/again") <= LIMIT


def test_a_full_branch_does_not_affect_other_branches_sessions_or_the_pool(limited: MakeLimited) -> None:
    session, free = limited(Limits(disk_bytes=LIMIT)), limited(Limits())
    session.snapshot("empty")
    (fork,) = session.fork("empty")
    fill(session, "/root/full")
    for other in (fork, free):
        assert other.exec("head -c 50M /dev/zero >/root/fits").limits_reached == ()
    assert free.exec("head -c 100M /dev/zero >/root/fits").exit_code == 0
    assert fork.snapshot().branch == "fork-1"
    assert fork.usage()["disk_bytes"] < LIMIT


LINKS = """
import os
os.mkdir('/root/many')
for number in range(10000):
    os.symlink('x' * 4000, f'/root/many/{number}')
"""


def test_metadata_counts_too(limited: MakeLimited) -> None:
    session = limited(Limits(disk_bytes=16 << 20))
    ended = session.exec_isolated(["python3", "-c", LINKS], timeout_s=120)
    assert "Disk quota exceeded" in ended.errors
    assert [limit.name for limit in ended.limits_reached] == ["disk"]
    session.exec("rm -r /root/many", timeout_s=DEADLINE_S)
    wait_until(session, "head -c 8M /dev/zero >/root/fits")  # freed when the pool commits


def test_a_copy_is_refused_by_name_only_if_it_does_not_fit(limited: MakeLimited, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(80 << 20))
    session = limited(Limits(disk_bytes=LIMIT))
    session.write_file("/root/large", "old")
    with pytest.raises(DiskLimitReached, match="disk limit"):
        session.upload(tmp_path / "large", "/root/large")
    assert session.read_file("/root/large") == b"old"
    (tmp_path / "large").write_bytes(os.urandom(20 << 20))
    session.upload(tmp_path / "large", "/root/large")
