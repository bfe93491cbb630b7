"""The second layer driver in use: a pool that is a plain directory, where a checkpoint copies files.

The state directory is on a tmpfs, because an overlay over ``/`` needs another file system than the root's.
"""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leaks import sweep
from support.workload import assert_workload_survives
from waypoint import Waypoint
from waypoint.errors import AbilityMissing
from waypoint.kernel.storage.mounts import detach_all
from waypoint.kernel.syscalls import mount
from waypoint.model import Limits
from waypoint.session.setup import prepare_host
from waypoint.store.layout import Layout
from waypoint.store.pool import Pool, PoolKind
from waypoint.store.pool_record import write_record
from workloads.watches import BASE_FILE


@pytest.fixture
def directory_state(state_dir: Path) -> Iterator[Path]:
    path = Path(f"/var/tmp/waypoint-directory-{secrets.token_hex(4)}")
    path.mkdir()
    mount("tmpfs", path, "tmpfs", 0, "size=1g,mode=700")
    try:
        Layout(path).criu_prefix.symlink_to(Layout(state_dir).criu_prefix.resolve())
        (path / "pool").mkdir()
        write_record(Pool(state_dir=path, kind=PoolKind.DIRECTORY))
        prepare_host(path, pool_size_bytes=None, proxies={}, progress=lambda _: None)
        yield path
        sweep(path)
    finally:
        detach_all(path)
        shutil.rmtree(path)


def test_sessions_are_saved_restored_and_forked_by_copying(directory_state: Path, workspace: Path) -> None:
    (workspace / "base").write_text("base\n")
    with Waypoint(directory_state) as waypoint:
        session = waypoint.create(workspace)
        try:
            session.exec("x=saved; echo saved >new; rm base; sleep 1000 & exec 7>>/tmp/open; echo one >&7")
            session.snapshot("point")
            session.exec("x=later; echo later >new; echo base >base; kill %1; echo two >&7")
            (fork,) = session.fork("point")
            session.restore("point")
            for branch in (session.main, fork):
                branch.exec("echo more >&7")
                state = branch.exec(
                    'echo "$x $(cat new) $(ls | wc -l) $(jobs -r | wc -l) $(tr "\\n" , </tmp/open)"'
                )
                assert state.output == "saved saved 1 1 one,more,\n"
            session.snapshot("again")
            session.restore("again")
            assert session.exec("echo $x").output == "saved\n"
            session.suspend()
            session.resume()
            assert session.exec("echo $x").output == "saved\n"
            session.snapshot("files", files_only=True)
            session.restore("files")
            assert session.exec("echo [$x] $(cat new)").output == "[] saved\n"
            assert (workspace / "base").read_text() == "base\n"
        finally:
            session.cleanup(force=True)


def test_a_process_still_watches_renamed_files(directory_state: Path, workspace: Path) -> None:
    (workspace / BASE_FILE).parent.mkdir(parents=True)
    (workspace / BASE_FILE).touch()
    with Waypoint(directory_state) as waypoint:
        session = waypoint.create(workspace)
        try:
            assert_workload_survives(session, "watches", "directory_of_the_base_renamed")
        finally:
            session.cleanup(force=True)


def test_a_disk_limit_is_refused_by_name_and_the_other_limits_apply(
    directory_state: Path, workspace: Path
) -> None:
    with Waypoint(directory_state) as waypoint:
        with pytest.raises(AbilityMissing, match="needs a pool on btrfs") as refused:
            waypoint.create(workspace, limits=Limits(disk_bytes=1 << 30))
        assert "--disk" in refused.value.hint
        assert waypoint.sessions() == []
        session = waypoint.create(workspace, limits=Limits(memory_bytes=64 << 20))
        try:
            session.snapshot("point")
            session.restore("point")
            ended = session.exec_isolated(["python3", "-c", "bytearray(256 << 20)"])
            assert [limit.name for limit in ended.limits_reached] == ["memory"]
        finally:
            session.cleanup(force=True)
