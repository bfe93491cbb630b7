"""Bases in the pool: exports match imports, no archive writes outside its base, and a crash leaves nothing."""

import io
import os
import stat
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kernel.test_directory_pool import directory_state
from support.crash import killed_at
from support.leaks import cgroups_of, look_at_host
from support.small_root import make_small_root
from support.state_directory import new_state_dir
from support.waiting import DEADLINE_S
from waypoint import Session, Waypoint
from waypoint.errors import BaseGone, BuildFailed, Busy, NotFound, UsageError
from waypoint.kernel.bases.image_index import ImageIndex, read_index
from waypoint.model import BaseRecord
from waypoint.session.bases.draft import using_base, using_images
from waypoint.session.bases.stored_bases import Bases

__all__ = ["directory_state"]  # a fixture

STEPS_MAX = 12  # more steps than any operation has


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    """A separate state directory: these tests count images, and other tests of the run have built and fetched some."""
    with new_state_dir() as path:
        yield path


@pytest.fixture
def small_root(tmp_path: Path) -> Path:
    return make_small_root(tmp_path / "small")


@pytest.fixture
def bases(waypoint: Waypoint, leaves_nothing_behind: None) -> Iterator[Bases]:
    """The bases of the run; those that the test made, and the sessions over them, are removed after it."""
    found = waypoint.bases()
    before = {base.id for base in found.all()}
    yield found
    for base in found.all():
        if base.id not in before:
            for user in found.users(base):
                waypoint.session(user).cleanup(force=True)
            found.remove(base.id)
    assert_nothing_left(waypoint)


@pytest.fixture(scope="module")
def small(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseRecord]:
    """A base that all of these tests share and leave unchanged."""
    root = make_small_root(tmp_path_factory.mktemp("small") / "root")
    with Waypoint(state_dir) as opened:
        base = opened.bases().import_(os.fspath(root), names=["small:1"])
        yield base
        opened.bases().remove(base.id)


@pytest.fixture
def own(bases: Bases, small_root: Path) -> BaseRecord:
    """A base for this test only."""
    (small_root / "own").write_text("own")
    return bases.import_(os.fspath(small_root), names=["own:1"])


def assert_nothing_left(waypoint: Waypoint) -> None:
    """No draft, container, cgroup, temporary file or image of a build is left; the catalogue has each base and name."""
    layout = waypoint.context.layout
    known = {base.id for base in waypoint.bases().all()}
    assert {path.name for path in layout.base("").iterdir()} == known
    assert list((layout.pool / "drafts").iterdir()) == []
    assert list((layout.image_store / "tmp").iterdir()) == []
    assert not (layout.image_store / "unswept").exists()
    with using_images(waypoint.context, "look", {}) as buildah:
        assert buildah._call(("containers", "--all", "--quiet"), 60.0, collect=True) == ""
    index = index_of(waypoint)
    images = {base.image: base for base in waypoint.bases().all()}
    assert set(index.layers) == set(images)
    assert index.names == {name: image for image, base in images.items() for name in base.names}
    assert cgroups_of(layout.state_dir, "build.*") == []
    assert waypoint.context.catalogue.unfinished() == []


def index_of(waypoint: Waypoint) -> ImageIndex:
    """Read the image store's index without opening the store, because using the store repairs its names."""
    driver = "btrfs" if waypoint.context.platform.layers.name == "btrfs" else "overlay"
    return read_index(waypoint.context.layout.image_store / "layers", driver)


def tree_of(root: Path) -> dict[str, object]:
    """Describe a tree completely: kinds, modes, owners, times to the nanosecond, contents, links, attributes."""
    inodes: dict[int, str] = {}
    found: dict[str, object] = {}
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in [".", *sorted(directories), *sorted(files)]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = (
                    Path(path).read_bytes(),
                    inodes.setdefault(status.st_ino, path.removeprefix(f"{root}/")),
                )
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            attributes = {
                attribute: os.getxattr(path, attribute, follow_symlinks=False)
                for attribute in os.listxattr(path, follow_symlinks=False)
            }
            facts = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, content, attributes)
            found[os.path.normpath(os.path.relpath(path, root))] = facts
    return found


# --- import and export ---------------------------------------------------------------------------------


def test_importing_an_export_gives_the_same_base(
    waypoint: Waypoint, bases: Bases, small_root: Path, tmp_path: Path
) -> None:
    (small_root / "owned").write_text("mine")
    os.chown(small_root / "owned", 1234, 5678)
    (small_root / "owned").chmod(0o6751)
    os.utime(small_root / "owned", ns=(1, 1_234_567_891_234_567_890))
    os.link(small_root / "owned", small_root / "linked")
    os.setxattr(small_root / "owned", "user.note", b"kept\0")
    os.setxattr(
        small_root / "bin/busybox", "security.capability", bytes.fromhex("0100000200040000" + "00" * 12)
    )
    (small_root / "dangling").symlink_to("/no/such/place")
    (small_root / "name with\nnewline and é").mkdir()
    os.mkfifo(small_root / "fifo")
    with (small_root / "holes").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"data")
    first = bases.import_(os.fspath(small_root), names=["tools:1"])
    base_directory = waypoint.context.layout.base(first.id)
    assert tree_of(base_directory) == tree_of(small_root)

    archive = tmp_path / "tools.tar"
    with archive.open("wb") as out:
        bases.export(first, out.write)
    assert archive.stat().st_size < 20 << 20  # the archive keeps the holes
    again = bytearray()
    bases.export(first, again.extend)
    assert bytes(again) == archive.read_bytes()

    before = tree_of(base_directory)
    bases.remove("tools:1")
    assert not base_directory.exists()
    second = bases.import_(os.fspath(archive), names=["other:2"])
    assert second.id == first.id
    assert tree_of(base_directory) == before
    assert os.stat(base_directory / "holes").st_blocks * 512 < 1 << 20


def test_the_same_content_is_stored_once_under_all_its_names(
    bases: Bases, small_root: Path, own: BaseRecord
) -> None:
    again = bases.import_(os.fspath(small_root), names=["own:2", "example.org/team/own"])
    assert again.id == own.id
    assert again.names == (
        "docker.io/library/own:1",
        "docker.io/library/own:2",
        "example.org/team/own:latest",
    )
    bases.remove("own:1")  # removes only the name
    assert bases.find("own:2").id == own.id
    with pytest.raises(NotFound, match="own:1"):
        bases.find("own:1")


def test_a_name_moves_to_the_new_base(bases: Bases, small_root: Path, own: BaseRecord) -> None:
    (small_root / "new").touch()
    newer = bases.import_(os.fspath(small_root), names=["own:1"])
    assert bases.find("own:1").id == newer.id != own.id
    assert bases.find(own.id[:12]).names == ()
    assert [base.id for base in bases.prune()] == [own.id]


def test_archives_may_be_compressed(bases: Bases, small_root: Path, tmp_path: Path) -> None:
    found = set()
    for option in ("--no-auto-compress", "--gzip"):
        archive = os.fspath(tmp_path / "archive")  # its name does not show its format
        subprocess.run(["tar", "-c", option, "-f", archive, "-C", small_root, "."], check=True)
        found.add(bases.import_(archive, names=["packed"]).id)
    assert len(found) == 1


def test_devices_are_left_out(waypoint: Waypoint, bases: Bases, small_root: Path, tmp_path: Path) -> None:
    (small_root / "dev").mkdir()
    os.mknod(small_root / "dev/disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    # a whiteout: "deleted" to an overlay
    os.mknod(small_root / "bin/ls.gone", stat.S_IFCHR | 0o666, os.makedev(0, 0))
    archive = os.fspath(tmp_path / "root.tar")
    subprocess.run(["tar", "-c", "-f", archive, "-C", small_root, "."], check=True)
    base = bases.import_(archive, names=["devices"])
    base_directory = waypoint.context.layout.base(base.id)
    assert list((base_directory / "dev").iterdir()) == []
    assert not os.path.lexists(base_directory / "bin/ls.gone")


@pytest.mark.parametrize("kind", ["absolute", "parent", "through a link", "hard link", "over a link"])
def test_no_name_or_link_in_an_archive_reaches_outside_the_base(
    bases: Bases, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    inside = os.fspath(victim).lstrip("/")
    archive = tmp_path / "hostile.tar"
    with tarfile.open(archive, "w") as tar:

        def add(name: str, text: str = "", **fields: object) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(text.encode()))

        if kind == "absolute":
            add(f"{victim}/new", "bad")
        elif kind == "parent":
            add("../" * 12 + f"{inside}/new", "bad")
        elif kind == "through a link":
            add("way", type=tarfile.SYMTYPE, linkname=os.fspath(victim))
            add("way/new", "bad")
        elif kind == "hard link":
            add("copy", type=tarfile.LNKTYPE, linkname=f"{victim}/file")
            add("copy", "bad")
        else:
            add("way", type=tarfile.SYMTYPE, linkname=f"{victim}/file")
            add("way", "bad")
    with suppress(BuildFailed):  # refusing the archive is fine too
        bases.import_(os.fspath(archive), names=["hostile"])
    assert [entry.name for entry in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "precious"


def test_what_is_not_an_archive_is_refused(bases: Bases, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive at all\n" * 1000)
    with pytest.raises(BuildFailed, match="cannot unpack"):
        bases.import_(os.fspath(tmp_path / "text"), names=["text"])
    with pytest.raises(NotFound):
        bases.import_(os.fspath(tmp_path / "none"), names=["none"])
    with pytest.raises(UsageError, match="needs a name"):
        bases.import_(os.fspath(tmp_path / "text"))
    assert bases.all() == [] or all("text" not in name for base in bases.all() for name in base.names)


# --- images --------------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory to build from."""
    directory = tmp_path / "app"
    directory.mkdir()
    (directory / "Dockerfile").write_text(
        'FROM small:1\nENV COLOUR=green\nWORKDIR /made/here\nRUN echo built >file\nCMD ["run", "it"]\n'
    )
    return directory


def test_an_image_from_an_archive_becomes_a_base(
    waypoint: Waypoint, bases: Bases, small: BaseRecord, app: Path, tmp_path: Path
) -> None:
    built = bases.build(app)
    assert (built.names, built.config.env["COLOUR"]) == (("localhost/app:latest",), "green")
    assert built.image is not None
    with using_images(waypoint.context, "push", {}) as buildah:
        for transport in ("oci:", "docker-archive:"):
            words = ("push", built.image, f"{transport}{tmp_path}/saved{len(transport)}:app:1")
            buildah._call(words, 60.0)
    (tmp_path / "saved15").rename(tmp_path / "saved.tar")
    with pytest.raises(UsageError, match="archive of an image") as caught:
        bases.import_(os.fspath(tmp_path / "saved.tar"), names=["wrong"])
    assert "docker-archive:" in caught.value.hint
    bases.remove("localhost/app")
    for source in (f"docker-archive:{tmp_path}/saved.tar", f"oci:{tmp_path}/saved4:app:1"):
        base = bases.pull(source, names=["back:1"])
        session = waypoint.create(base="back:1")
        try:
            assert session.exec("echo $PWD $COLOUR $(cat file) $WAYPOINT_IMAGE_COMMAND").output == (
                "/made/here green built run it\n"
            )
        finally:
            session.cleanup(force=True)
        bases.remove(base.id)


def test_onbuild_steps_of_an_image_are_not_run_for_its_base(
    waypoint: Waypoint, bases: Bases, small: BaseRecord, app: Path, tmp_path: Path
) -> None:
    """An ONBUILD COPY, run without a directory to build from, would copy files of the host."""
    (tmp_path / "of-the-host").write_text("of the host")
    with open(app / "Dockerfile", "a") as dockerfile:
        dockerfile.write(f"ONBUILD COPY {tmp_path}/of-the-host /stolen\nONBUILD RUN touch /run-at-import\n")
    root = waypoint.context.layout.base(bases.build(app).id)
    assert (root / "made/here/file").read_text() == "built\n"
    assert not (root / "stolen").exists()
    assert not (root / "run-at-import").exists()


def test_a_base_whose_name_moved_to_another_is_pruned(bases: Bases, small: BaseRecord, app: Path) -> None:
    old = bases.build(app)
    with open(app / "Dockerfile", "a") as dockerfile:
        dockerfile.write("RUN echo more >more\n")
    bases.build(app)
    bases.remove("localhost/app")  # also removes the old base's image, which has no name any more
    assert [base.id for base in bases.prune()] == [old.id]


def test_a_known_base_gets_a_new_image_if_its_image_was_removed(
    waypoint: Waypoint, bases: Bases, small_root: Path, own: BaseRecord, app: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "own.tar"
    with archive.open("wb") as out:
        bases.export(own, out.write)
    (small_root / "new").touch()
    bases.import_(os.fspath(small_root), names=["own:1"])
    bases.remove("own:1")  # also removes the first base's image, which has no name any more
    again = bases.import_(os.fspath(archive), names=["own:2"])
    assert again.id == own.id
    assert again.image != own.image
    assert index_of(waypoint).names["docker.io/library/own:2"] == again.image
    (app / "Dockerfile").write_text("FROM own:2\nRUN cat /own >/built\n")
    assert (waypoint.context.layout.base(bases.build(app).id) / "built").read_text() == "own"


def test_an_image_that_cannot_be_fetched_is_reported_by_name(bases: Bases, tmp_path: Path) -> None:
    name = "registry.invalid/no/such:1"
    with pytest.raises(BuildFailed, match=f"cannot fetch docker://{name}") as caught:
        bases.pull(f"docker://{name}")
    assert "registry" in caught.value.hint
    with pytest.raises(BuildFailed, match="cannot fetch"):
        bases.pull(f"docker://registry.invalid/no/such@sha256:{'0' * 64}")
    with pytest.raises(NotFound):
        bases.pull(f"docker-archive:{tmp_path}/none")
    with pytest.raises(UsageError, match="not an image"):
        bases.pull("debian:bookworm")


def test_in_a_directory_pool_a_base_can_be_built_and_used(
    directory_state: Path, small_root: Path, app: Path
) -> None:
    with Waypoint(directory_state) as waypoint:
        bases = waypoint.bases()
        bases.import_(os.fspath(small_root), names=["small:1"])
        built = bases.build(app)
        assert bases.build(app).id == built.id
        session = waypoint.create(base="app")
        try:
            session.exec("echo changed >file")
            session.snapshot("point")
            session.restore("point")
            assert session.exec("cat file").output == "changed\n"
        finally:
            session.cleanup(force=True)
        for name in ("app", "small:1"):
            bases.remove(name)
        assert_nothing_left(waypoint)


# --- sessions over them --------------------------------------------------------------------------------


def test_a_base_directory_that_was_removed_or_replaced_by_a_link_is_reported(
    waypoint: Waypoint, small_root: Path, leaves_nothing_behind: None
) -> None:
    session = waypoint.create(base=small_root)
    session.snapshot("all")
    session.snapshot("files", files_only=True)
    aside = small_root.rename(small_root.with_name("aside"))
    for there in (None, "/"):
        if there is not None:
            small_root.symlink_to(there)
        for checkpoint in ("all", "files"):
            with pytest.raises(BaseGone, match=f"{small_root}, the base of session {session.id}, is gone"):
                session.restore(checkpoint)
    small_root.unlink()
    aside.rename(small_root)
    session.restore("files")
    session.restore("all")
    session.cleanup()


def test_no_two_files_of_a_session_share_an_inode_number(
    waypoint: Waypoint, bases: Bases, own: BaseRecord, app: Path
) -> None:
    """Base and layer are on one btrfs, where the inode numbers of each subvolume start at the same number."""
    (app / "Dockerfile").write_text("FROM own:1\nRUN mkdir /many && cd /many && touch $(seq 300)\n")
    for base in (own, bases.build(app)):
        session = waypoint.create(base=base.id)
        session.exec("mkdir /new; cd /new; touch $(seq 400); echo changed >>/own")
        session.snapshot("point")
        session.restore("point")
        session.exec("touch $(seq 401 800)")
        listed = session.exec(
            "find / -xdev ! -path '/proc/*' ! -path '/sys/*' ! -type l -exec stat -c '%d:%i' {} +"
        )
        numbers = listed.output.splitlines()
        assert listed.exit_code == 0
        assert len(numbers) > 800
        assert [number for number in numbers if numbers.count(number) > 1] == []
        session.cleanup()


def test_a_base_in_use_is_not_removed(waypoint: Waypoint, bases: Bases, own: BaseRecord) -> None:
    session = waypoint.create(base="own:1", name="over-own")
    with pytest.raises(Busy, match="used by over-own"):
        bases.remove("own:1")
    assert session.exec("cat /own").output == "own"
    session.cleanup(force=True)
    bases.remove("own:1")
    with pytest.raises(NotFound, match="own:1"):
        waypoint.create(base="own:1")


def test_nothing_is_removed_during_a_build(
    waypoint: Waypoint, bases: Bases, small_root: Path, own: BaseRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build may be about to use layers of an image that nothing else needs, or to assign the name being removed."""
    bases.import_(os.fspath(small_root), names=["own:2"])
    monkeypatch.setattr("waypoint.session.bases.draft.ALONE_TIMEOUT_S", 0.0)
    with using_images(waypoint.context, "build", {}):
        for remove in (lambda: bases.remove("own:2"), lambda: bases.remove(own.id), bases.prune):
            with pytest.raises(Busy, match="image store") as busy:
                remove()
            assert "try again when that is done" in busy.value.hint
        assert waypoint.context.catalogue.unfinished() == []
        assert waypoint.context.layout.base(own.id).is_dir()
        assert len(bases.find("own:2").names) == 2
    bases.remove("own:2")
    bases.remove("own:1")


def test_a_base_is_not_removed_while_a_session_is_created_over_it(
    waypoint: Waypoint, bases: Bases, small: BaseRecord
) -> None:
    # as two running creations hold it
    with using_base(waypoint.context, small), using_base(waypoint.context, small):
        with pytest.raises(Busy):
            bases.remove("small:1")


def test_during_the_removal_of_a_base_a_session_starts_or_reports_it_missing(
    waypoint: Waypoint, bases: Bases, own: BaseRecord
) -> None:
    made: list[Session] = []
    refused: list[Exception] = []

    def create() -> None:
        try:
            made.append(waypoint.create(base=own.id))
        except NotFound as error:
            refused.append(error)

    def remove() -> None:
        try:
            bases.remove(own.id)
        except Busy as error:
            refused.append(error)

    threads = [threading.Thread(target=act) for act in (create, remove, create)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_there = any(base.id == own.id for base in bases.all())
    assert is_there == bool(made)
    for session in made:
        assert session.exec("echo alive").output == "alive\n"
        session.cleanup(force=True)


def test_a_base_without_a_shell_is_reported(waypoint: Waypoint, bases: Bases, tmp_path: Path) -> None:
    (tmp_path / "empty/etc").mkdir(parents=True)
    bases.import_(os.fspath(tmp_path / "empty"), names=["empty"])
    with pytest.raises(NotFound, match="no shell") as caught:
        waypoint.create(base="empty")
    assert "/bin/sh" in caught.value.hint


# --- killed operations---------------------------------------------------------------------------------


def test_an_import_killed_at_any_step_is_undone_or_finished(
    state_dir: Path, waypoint: Waypoint, bases: Bases, small_root: Path
) -> None:
    words = ("base", "import", os.fspath(small_root), "--name", "cut:1")
    before = look_at_host(state_dir)
    for step in range(STEPS_MAX):
        assert killed_at(state_dir, step, *words)
        with Waypoint(state_dir) as next_command:
            assert_nothing_left(next_command)
            if any("docker.io/library/cut:1" in base.names for base in next_command.bases().all()):
                break  # it was published, and the next command finished it
        assert look_at_host(state_dir) == before
    else:
        pytest.fail("it was never published")
    assert step > 3


def test_after_a_build_killed_at_any_step_each_name_has_one_base_and_its_image(
    state_dir: Path, waypoint: Waypoint, bases: Bases, small: BaseRecord, app: Path
) -> None:
    old = bases.build(app)
    with open(app / "Dockerfile", "a") as dockerfile:
        dockerfile.write("RUN echo more >more\n")
    for step in range(STEPS_MAX):
        assert killed_at(state_dir, step, "build", os.fspath(app), "--quiet")
        with Waypoint(state_dir) as next_command:
            found = next_command.bases().find("app")
            index = index_of(next_command)
            assert next_command.context.catalogue.unfinished() == []
        assert index.names == {
            "docker.io/library/small:1": small.image,
            "localhost/app:latest": found.image,
        }
        if found.id != old.id:
            break
    else:
        pytest.fail("it was never published")
    assert step > 3
    assert [base.id for base in bases.prune()] == [old.id]


def test_a_name_whose_removal_was_killed_exists_completely_or_not_at_all(
    state_dir: Path, waypoint: Waypoint, bases: Bases, own: BaseRecord, small_root: Path, app: Path
) -> None:
    bases.import_(os.fspath(small_root), names=["own:2"])
    with using_images(waypoint.context, "rm", {}) as buildah:
        buildah.untag("docker.io/library/own:2")  # here the removal is killed
    assert bases.find("own:2").id == own.id
    (app / "Dockerfile").write_text("FROM own:2\n")
    assert bases.build(app).image is not None


def test_a_fetched_image_is_kept_while_a_base_needs_it(
    waypoint: Waypoint, bases: Bases, small: BaseRecord, app: Path, tmp_path: Path
) -> None:
    """As FROM fetches an image: it has a name in the store, and no base has that name."""
    built = bases.build(app)
    assert built.image is not None
    with using_images(waypoint.context, "fetch", {}) as buildah:
        for image, name in ((small.image, "needed:1"), (built.image, "needless:1")):
            saved = f"docker-archive:{tmp_path}/{name.partition(':')[0]}"
            buildah._call(("push", str(image), f"{saved}:docker.io/library/{name}"), 60.0)
    bases.remove("app")
    for name in ("needed", "needless"):
        with using_images(waypoint.context, "fetch", {}) as buildah:
            buildah.pull(f"docker-archive:{tmp_path}/{name}", on_output=None)
    assert len(index_of(waypoint).names) == 3
    bases.prune()
    assert set(index_of(waypoint).names) == {"docker.io/library/needed:1", "docker.io/library/small:1"}
    with using_images(waypoint.context, "look", {}) as buildah:
        buildah.untag("docker.io/library/needed:1")


def test_a_killed_removal_is_finished_by_the_next_command(
    state_dir: Path, waypoint: Waypoint, bases: Bases, own: BaseRecord
) -> None:
    context = waypoint.context
    assert killed_at(state_dir, 1, "base", "rm", "own:1")
    assert context.layout.base(own.id).exists()
    with Waypoint(state_dir) as next_command:
        assert_nothing_left(next_command)
    assert not context.layout.base(own.id).exists()


@pytest.mark.parametrize("step", ["forget", "files", "image"])
def test_a_killed_removal_spares_a_base_that_was_made_again(
    state_dir: Path, waypoint: Waypoint, bases: Bases, own: BaseRecord, small_root: Path, step: str
) -> None:
    """It is made again by a process that had opened the state directory before."""
    assert killed_at(state_dir, ["forget", "files", "image"].index(step), "base", "rm", "own:1")
    assert [base.id for base in bases.all()].count(own.id) == (step == "forget")
    again = bases.import_(os.fspath(small_root), names=["own:1"])
    assert again.id == own.id
    session = waypoint.create(base="own:1")
    with Waypoint(state_dir) as next_command:
        assert next_command.bases().find("own:1").id == own.id
        assert next_command.context.catalogue.unfinished() == []
    session.snapshot("point")
    session.restore("point")
    assert session.exec("cat /own").output == "own"
    session.cleanup()


def test_finishing_a_removal_does_not_wait_for_a_build(
    state_dir: Path, waypoint: Waypoint, bases: Bases, own: BaseRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waypoint.session.bases.draft.ALONE_TIMEOUT_S", DEADLINE_S)
    assert killed_at(state_dir, 2, "base", "rm", "own:1")  # only the image is left
    with using_images(waypoint.context, "build", {}):
        began = time.monotonic()
        with Waypoint(state_dir) as next_command:
            assert time.monotonic() - began < DEADLINE_S
            assert next_command.context.catalogue.unfinished() != []
    with Waypoint(state_dir) as next_command:
        assert_nothing_left(next_command)


def test_an_imported_base_shares_its_space_with_its_image(
    waypoint: Waypoint, bases: Bases, small_root: Path
) -> None:
    (small_root / "large").write_bytes(os.urandom(16 << 20))
    base = bases.import_(os.fspath(small_root), names=["large"])
    base_directory = waypoint.context.layout.base(base.id)
    os.sync()
    listed = subprocess.run(
        ["btrfs", "filesystem", "du", "-s", "--raw", base_directory],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    total, exclusive = map(int, listed.splitlines()[1].split()[:2])
    assert total > 16 << 20
    assert exclusive < 1 << 20
