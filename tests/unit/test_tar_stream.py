"""Archives from untrusted sources: refused by name, or unpacked below the directory and nowhere else."""

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waypoint.errors import CopyFailed
from waypoint.kernel.copy.file_tree import CopyJob
from waypoint.kernel.copy.tar_stream import TarWriter, unpack_tar


@pytest.fixture
def below(tmp_path: Path) -> Iterator[int]:
    """An open directory ``below``; nothing outside it may change."""
    (tmp_path / "below").mkdir()
    (tmp_path / "outside").write_text("untouched")
    fd = os.open(tmp_path / "below", os.O_RDONLY)
    yield fd
    os.close(fd)
    assert sorted(os.listdir(tmp_path)) == ["below", "outside"]
    assert (tmp_path / "outside").read_text() == "untouched"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def archive(*members: tarfile.TarInfo, content: bytes = b"new", form: int = tarfile.PAX_FORMAT) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for entry in members:
            entry.size = len(content) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(content))
    stream.seek(0)
    return stream


@pytest.mark.parametrize("links", [False, True], ids=["links refused", "links kept"])
@pytest.mark.parametrize(
    "members",
    [
        [member("/outside")],
        [member("../outside")],
        [member("a/../../outside")],
        [member("//outside")],
        [member("a", tarfile.CHRTYPE)],
        [member("a", tarfile.BLKTYPE)],
        [member("a", tarfile.FIFOTYPE)],
        [member("a", b"Z")],
        [member("a", tarfile.LNKTYPE, "../outside")],
        [member("a", tarfile.LNKTYPE, "/outside")],
        [member("a", tarfile.LNKTYPE, "")],
        [member(".")],
        [member("a", tarfile.DIRTYPE), member("a")],
        [member("/".join("d" * 300))],
    ],
    ids=lambda members: (
        f"{members[-1].type.decode(errors='replace')} {members[-1].name[:20]} {members[-1].linkname}"
    ),
)
def test_a_member_that_points_outside_or_is_no_file_is_refused_by_name(
    below: int, members: list[tarfile.TarInfo], links: bool
) -> None:
    with pytest.raises(CopyFailed) as refused:
        unpack_tar(archive(*members), below, CopyJob(keeps_links=links))
    assert refused.value.path == f"tar:{members[-1].name}"


def test_a_link_is_refused_or_kept_unchanged(below: int, tmp_path: Path) -> None:
    link = member("a", tarfile.SYMTYPE, "../outside")
    with pytest.raises(CopyFailed, match="'tar:a': it is a symbolic link"):
        unpack_tar(archive(link), below, CopyJob())
    unpack_tar(archive(link), below, CopyJob(keeps_links=True))
    assert os.readlink(tmp_path / "below" / "a") == "../outside"


@pytest.mark.parametrize("target", ["..", "/", "."])
def test_no_member_is_unpacked_through_a_link(below: int, target: str) -> None:
    stream = archive(member("a", tarfile.SYMTYPE, target), member("a/outside"))
    with pytest.raises(OSError, match="tar:a/outside"):
        unpack_tar(stream, below, CopyJob(keeps_links=True))


def test_a_hard_link_is_not_made_through_a_link(below: int, tmp_path: Path) -> None:
    stream = archive(member("a", tarfile.SYMTYPE, ".."), member("b", tarfile.LNKTYPE, "a/outside"))
    with pytest.raises(OSError, match="tar:b"):
        unpack_tar(stream, below, CopyJob(keeps_links=True))
    stream = archive(member("c", tarfile.SYMTYPE, "../outside"), member("d", tarfile.LNKTYPE, "c"))
    with pytest.raises(OSError, match="tar:d"):
        unpack_tar(stream, below, CopyJob(keeps_links=True))
    assert (tmp_path / "below" / "d").read_text() == ""


def test_a_link_where_a_file_belongs_is_replaced(below: int, tmp_path: Path) -> None:
    stream = archive(member("a", tarfile.SYMTYPE, "../outside"), member("a"))
    unpack_tar(stream, below, CopyJob(keeps_links=True))
    assert not (tmp_path / "below" / "a").is_symlink()
    assert (tmp_path / "below" / "a").read_text() == "new"


def test_modes_and_hard_links_are_kept(below: int, tmp_path: Path) -> None:
    job = CopyJob()
    stream = archive(
        member(".", tarfile.DIRTYPE, mode=0o711),
        member("./dir", tarfile.DIRTYPE, mode=0o2750),
        member("./dir/program", mode=0o4755),
        member("./missing/parent/file", mode=0o600),
        member("./again", tarfile.LNKTYPE, "dir/program"),
    )
    unpack_tar(stream, below, job)
    modes = {
        os.fspath(path.relative_to(tmp_path)): path.stat().st_mode & 0o7777
        for path in (tmp_path / "below", *(tmp_path / "below").rglob("*"))
    }
    assert modes == {
        "below": 0o711,
        "below/again": 0o755,
        "below/dir": 0o750,
        "below/dir/program": 0o755,
        "below/missing": 0o755,
        "below/missing/parent": 0o755,
        "below/missing/parent/file": 0o600,
    }
    assert (tmp_path / "below" / "again").stat().st_nlink == 1
    assert (job.files, job.directories, job.size_bytes) == (3, 1, 9)


@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: b"no archive", lambda data: data[:700]])
def test_an_incomplete_archive_is_reported(below: int, spoil: Callable[[bytes], bytes]) -> None:
    data = archive(member("a"), content=b"x" * 1000).getvalue()
    with pytest.raises(CopyFailed, match="not a whole tar archive"):
        unpack_tar(io.BytesIO(spoil(data)), below, CopyJob())


NAMES = ["plain", "a b", "new\nline", "-dash", "\udcff\udcfe", "é" * 120, "x" * 255, "\\", ".waypoint"]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_any_file_name_is_kept(below: int, tmp_path: Path, form: int) -> None:
    stream = archive(*map(member, NAMES), form=form)
    unpack_tar(stream, below, CopyJob())
    assert sorted(os.listdir(tmp_path / "below")) == sorted(NAMES)

    out = io.BytesIO()
    writer = TarWriter(out, CopyJob())
    writer.add_directory(below, "top", "top")
    writer.end()
    assert len(out.getvalue()) % 10240 == 0
    out.seek(0)
    with tarfile.open(fileobj=out, errors="surrogateescape") as tar:
        assert sorted(tar.getnames()) == sorted(["top", *(f"top/{name}" for name in NAMES)])
