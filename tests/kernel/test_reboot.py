"""After a restart of the host: branches are dead, checkpoints are not."""

from pathlib import Path

import pytest

from waypoint import Session, Waypoint
from waypoint.errors import Broken
from waypoint.kernel.storage.mounts import detach_all, read_mounts
from waypoint.store.pool import unmount_pool


def pretend_to_reboot(session: Session, state_dir: Path) -> None:
    """Remove what a restart removes: processes, mounts, the loop device, CRIU's kernel cache."""
    context = session.context
    for branch in session.branches():
        context.platform.cgroup(branch.record.incarnation).remove()
        detach_all(context.layout.mount(branch.record.incarnation))
    unmount_pool(state_dir)
    context.platform.criu.kdat.unlink()


def test_checkpoints_can_be_restored_and_forked_after_a_restart(session: Session, state_dir: Path) -> None:
    session.exec("x=kept; echo kept >/root/note")
    session.snapshot("point")
    session.fork("point", ids=["other"])
    pretend_to_reboot(session, state_dir)
    assert not any(mount.path.startswith(str(state_dir)) for mount in read_mounts())
    with Waypoint(state_dir) as waypoint:
        again = waypoint.session(session.id)
        assert [branch.is_running() for branch in again.branches()] == [False, False]
        with pytest.raises(Broken, match="does not answer"):
            again.exec("true")
        with pytest.raises(Broken, match="not running"):
            again.snapshot("no")
        again.restore("point")
        assert again.exec("echo $x $(cat /root/note)").output == "kept kept\n"
        (fork,) = again.fork("point")
        assert fork.exec("echo $x").output == "kept\n"
        again.destroy("other")
        assert {branch.name for branch in again.branches()} == {"main", fork.name}
