"""What every layer driver promises: the same tests for each driver, under a real overlay."""

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
    """A driver's test class supplies the fixtures ``driver`` and ``directory`` (a directory to work in)."""

    @contextmanager
    def mounted(self, directory: Path, layer: Path) -> Iterator[Path]:
        root = directory / "root"
        root.mkdir()
        mount_overlay(directory / "base", layer / "upper", layer / "work", root)
        try:
            yield root
        finally:
            detach_all(root)
            root.rmdir()

    def save_and_copy(self, driver: LayerDriver, directory: Path, change: str) -> Path:
        """Run ``change`` in a layer over the base, capture it while mounted, and return a copy of what was captured."""
        driver.create(directory / "layer")
        with self.mounted(directory, directory / "layer") as root:
            for line in change.split(";"):
                assert os.system(f"cd {root} && {line}") == 0
            driver.flush(directory / "layer")
            driver.capture(directory / "layer", directory / "saved")
            (root / "later").write_text("not saved")
        driver.materialize(directory / "saved", directory / "copy")
        return directory / "copy"

    def test_created_changed_and_deleted_files_are_copied(self, driver: LayerDriver, directory: Path) -> None:
        copy = self.save_and_copy(
            driver, directory, "echo new >new; echo more >>kept; rm gone; rm -r directory"
        )
        with self.mounted(directory, copy) as root:
            assert (root / "new").read_text() == "new\n"
            assert (root / "kept").read_text() == "kept\nmore\n"
            assert not (root / "gone").exists()
            assert not (root / "directory").exists()
            assert not (root / "later").exists()

    def test_a_replaced_directory_hides_the_one_of_the_base(
        self, driver: LayerDriver, directory: Path
    ) -> None:
        copy = self.save_and_copy(
            driver, directory, "rm -r directory; mkdir directory; echo x >directory/own"
        )
        with self.mounted(directory, copy) as root:
            assert os.listdir(root / "directory") == ["own"]

    def test_a_renamed_directory_of_the_base_keeps_its_content(
        self, driver: LayerDriver, directory: Path
    ) -> None:
        copy = self.save_and_copy(driver, directory, "mv directory moved")
        with self.mounted(directory, copy) as root:
            assert (root / "moved/inside").read_text() == "inside\n"
            assert not (root / "directory").exists()

    def test_modes_owners_links_and_special_files_are_copied(
        self, driver: LayerDriver, directory: Path
    ) -> None:
        copy = self.save_and_copy(
            driver,
            directory,
            "echo x >f; chown 12:34 f; chmod 4751 f; ln f hard; ln -s /nowhere soft; mkfifo fifo; mknod n c 1 3",
        )
        with self.mounted(directory, copy) as root:
            facts = (root / "f").stat()
            assert (stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid) == (0o4751, 12, 34)
            assert (root / "hard").stat().st_ino == facts.st_ino
            assert os.readlink(root / "soft") == "/nowhere"
            assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
            assert (root / "n").stat().st_rdev == os.makedev(1, 3)

    def test_copies_are_independent_and_the_saved_layer_never_changes(
        self, driver: LayerDriver, directory: Path
    ) -> None:
        first = self.save_and_copy(driver, directory, "echo saved >f")
        driver.materialize(directory / "saved", directory / "second")
        with self.mounted(directory, first) as root:
            (root / "f").write_text("first")
        with self.mounted(directory, directory / "second") as root:
            assert (root / "f").read_text() == "saved\n"
        assert (directory / "saved/upper/f").read_text() == "saved\n"
        driver.delete(directory / "second")

    def test_deleting_a_layer_twice_is_no_error(self, driver: LayerDriver, directory: Path) -> None:
        self.save_and_copy(driver, directory, "echo x >f")
        for name in ("saved", "saved", "never-was"):
            driver.delete(directory / name)
            assert not (directory / name).exists()


@contextmanager
def directory_with_base(directory: Path, driver: LayerDriver) -> Iterator[Path]:
    """Put a base into ``directory``; remove everything afterwards."""
    (directory / "base/directory").mkdir(parents=True)
    for name in ("kept", "gone", "directory/inside"):
        (directory / "base" / name).write_text(f"{Path(name).name}\n")
    yield directory
    for name in ("layer", "saved", "copy"):
        driver.delete(directory / name)
    shutil.rmtree(directory)


class TestBtrfsLayers(LayerContract):
    @pytest.fixture
    def driver(self) -> LayerDriver:
        return BtrfsLayers()

    @pytest.fixture
    def directory(self, state_dir: Path, driver: LayerDriver) -> Iterator[Path]:
        with directory_with_base(state_dir / "pool" / f"room-{secrets.token_hex(4)}", driver) as directory:
            yield directory


class TestOverlayLayers(LayerContract):
    @pytest.fixture
    def driver(self) -> LayerDriver:
        return OverlayLayers()

    @pytest.fixture
    def directory(self, driver: LayerDriver) -> Iterator[Path]:
        with directory_with_base(Path(f"/var/tmp/waypoint-room-{secrets.token_hex(4)}"), driver) as directory:
            yield directory
