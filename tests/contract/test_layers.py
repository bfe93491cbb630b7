"""What every layer driver promises, tried by the same class on each of them, under a real overlay."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waypoint.kernel.storage.mounts import detach_all, mount_overlay
from waypoint.store.btrfs_layers import BtrfsLayers
from waypoint.store.directory_layers import OverlayLayers
from waypoint.store.layers import LayerDriver

pytestmark = pytest.mark.kernel


class LayerContract:
    """A driver's test class supplies the fixtures ``driver`` and ``room`` (a directory it can work in)."""

    @contextmanager
    def mounted(self, room: Path, layer: Path) -> Iterator[Path]:
        root = room / "root"
        root.mkdir()
        mount_overlay(room / "base", layer / "upper", layer / "work", root)
        try:
            yield root
        finally:
            detach_all(root)
            root.rmdir()

    def save_and_copy(self, driver: LayerDriver, room: Path, change: str) -> Path:
        """A layer with changes over the base, captured while mounted, and a copy made from that."""
        driver.create(room / "layer")
        with self.mounted(room, room / "layer") as root:
            for line in change.split(";"):
                assert os.system(f"cd {root} && {line}") == 0
            driver.flush(room / "layer")
            driver.capture(room / "layer", room / "saved")
            (root / "later").write_text("not saved")
        driver.materialize(room / "saved", room / "copy")
        return room / "copy"

    def test_created_changed_and_deleted_files_come_back(self, driver: LayerDriver, room: Path) -> None:
        copy = self.save_and_copy(driver, room, "echo new >new; echo more >>kept; rm gone; rm -r directory")
        with self.mounted(room, copy) as root:
            assert (root / "new").read_text() == "new\n"
            assert (root / "kept").read_text() == "kept\nmore\n"
            assert not (root / "gone").exists()
            assert not (root / "directory").exists()
            assert not (root / "later").exists()

    def test_a_directory_that_was_replaced_hides_the_one_of_the_base(
        self, driver: LayerDriver, room: Path
    ) -> None:
        copy = self.save_and_copy(driver, room, "rm -r directory; mkdir directory; echo x >directory/own")
        with self.mounted(room, copy) as root:
            assert os.listdir(root / "directory") == ["own"]

    def test_a_renamed_directory_of_the_base_keeps_its_content(self, driver: LayerDriver, room: Path) -> None:
        copy = self.save_and_copy(driver, room, "mv directory moved")
        with self.mounted(room, copy) as root:
            assert (root / "moved/inside").read_text() == "inside\n"
            assert not (root / "directory").exists()

    def test_modes_owners_links_and_special_files_come_back(self, driver: LayerDriver, room: Path) -> None:
        copy = self.save_and_copy(
            driver,
            room,
            "echo x >f; chown 12:34 f; chmod 4751 f; ln f hard; ln -s /nowhere soft; mkfifo fifo; mknod n c 1 3",
        )
        with self.mounted(room, copy) as root:
            facts = (root / "f").stat()
            assert (stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid) == (0o4751, 12, 34)
            assert (root / "hard").stat().st_ino == facts.st_ino
            assert os.readlink(root / "soft") == "/nowhere"
            assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
            assert (root / "n").stat().st_rdev == os.makedev(1, 3)

    def test_copies_do_not_see_each_other_and_the_saved_one_never_changes(
        self, driver: LayerDriver, room: Path
    ) -> None:
        first = self.save_and_copy(driver, room, "echo saved >f")
        driver.materialize(room / "saved", room / "second")
        with self.mounted(room, first) as root:
            (root / "f").write_text("first")
        with self.mounted(room, room / "second") as root:
            assert (root / "f").read_text() == "saved\n"
        assert (room / "saved/upper/f").read_text() == "saved\n"
        driver.delete(room / "second")

    def test_deleting_is_done_once_and_fine_twice(self, driver: LayerDriver, room: Path) -> None:
        self.save_and_copy(driver, room, "echo x >f")
        for name in ("saved", "saved", "never-was"):
            driver.delete(room / name)
            assert not (room / name).exists()


@contextmanager
def furnished(room: Path, driver: LayerDriver) -> Iterator[Path]:
    """A room with a base in it, emptied afterwards."""
    (room / "base/directory").mkdir(parents=True)
    for name in ("kept", "gone", "directory/inside"):
        (room / "base" / name).write_text(f"{Path(name).name}\n")
    yield room
    for name in ("layer", "saved", "copy"):
        driver.delete(room / name)
    shutil.rmtree(room)


class TestBtrfsLayers(LayerContract):
    @pytest.fixture
    def driver(self) -> LayerDriver:
        return BtrfsLayers()

    @pytest.fixture
    def room(self, state_dir: Path, driver: LayerDriver) -> Iterator[Path]:
        with furnished(state_dir / "pool" / f"room-{secrets.token_hex(4)}", driver) as room:
            yield room


class TestOverlayLayers(LayerContract):
    @pytest.fixture
    def driver(self) -> LayerDriver:
        return OverlayLayers()

    @pytest.fixture
    def room(self, driver: LayerDriver) -> Iterator[Path]:
        with furnished(Path(f"/var/tmp/waypoint-room-{secrets.token_hex(4)}"), driver) as room:
            yield room
