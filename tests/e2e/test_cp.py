"""``waypoint cp``: every form, in both directions, with files, directories and tar streams."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.command_line import COMMAND, TIMEOUT_S, Cli, Ended


def piped(cli: Cli, *words: str, stdin: bytes = b"") -> Ended:
    """Run a command line with ``stdin`` as its input."""
    ended = subprocess.run(
        [COMMAND, *words], env=cli.env, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    err = ended.stderr.decode()
    assert "Traceback" not in err, err
    return Ended(ended.returncode, ended.stdout, err)


def tar_of(*members: tarfile.TarInfo, content: bytes = b"new") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.fixture
def app(tmp_path: Path) -> Path:
    root = tmp_path / "app"
    (root / "lib").mkdir(parents=True)
    (root / "run").write_text("#!/bin/sh\necho ran\n")
    (root / "run").chmod(0o755)
    (root / "lib" / "data").write_bytes(bytes(range(256)) * 1000)
    return root


@pytest.mark.quick
def test_files_and_directories_are_copied_both_ways_in_silence(
    cli: Cli, shell: str, app: Path, tmp_path: Path
) -> None:
    cli("fork", shell, "main", "--id", "side")
    for target in (f"{shell}:/srv/app", f"{shell}:side:/srv/app"):
        assert cli.run("cp", os.fspath(app), target) == Ended(0, b"", "")
        assert cli.run("cp", f"{app}/run", target) == Ended(0, b"", "")
    assert cli("exec", f"{shell}:side", "--", "/srv/app/run") == "ran"
    assert cli.run("cp", f"{shell}:side:/srv/app/", f"{tmp_path}/back") == Ended(0, b"", "")
    assert (tmp_path / "back" / "lib" / "data").read_bytes() == (app / "lib" / "data").read_bytes()
    assert (tmp_path / "back" / "run").stat().st_mode & 0o7777 == 0o755
    assert cli.run("cp", f"{shell}:/srv/app/run", f"{tmp_path}/back/lib/") == Ended(0, b"", "")
    assert (tmp_path / "back" / "lib" / "run").read_text() == (app / "run").read_text()


def test_cp_accepts_the_session_as_the_first_word(cli: Cli, shell: str, app: Path, tmp_path: Path) -> None:
    assert cli.run("cp", shell, os.fspath(app), "main:/srv/app") == Ended(0, b"", "")
    assert cli.run("cp", shell, "main:/srv/app/run", f"{tmp_path}/run") == Ended(0, b"", "")
    assert (tmp_path / "run").read_bytes() == (app / "run").read_bytes()


def test_the_document_lists_what_was_copied(cli: Cli, shell: str, app: Path, tmp_path: Path) -> None:
    expected = {
        "session_id": shell,
        "branch": "main",
        "direction": "in",
        "files": 2,
        "directories": 2,
        "links": 0,
        "bytes": sum(path.stat().st_size for path in app.rglob("*") if path.is_file()),
    }
    assert cli.document("cp", os.fspath(app), f"{shell}:/srv/app") == expected
    assert cli.document("cp", f"{shell}:/srv/app", f"{tmp_path}/out") == {**expected, "direction": "out"}
    stream = cli.run("cp", f"{shell}:/srv/app", "-").out
    ended = piped(cli, "cp", "--json", "-", f"{shell}:/srv/again", stdin=stream)
    assert json.loads(ended.out) == expected
    assert re.search(
        r"^upload main: [\d.]+ ms  \(copy [\d.]+\)",
        cli.run("cp", "--timings", os.fspath(app), f"{shell}:/srv/app").err,
    )


def test_relative_and_unusual_host_paths_work(
    cli: Cli, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a:b", "-", "new\nline", "name with blanks", os.fsdecode(b"\xff")):
        Path(name).write_text(name, errors="surrogateescape")
        source = "./-" if name == "-" else name
        assert cli.run("cp", source, f"{shell}:/srv/odd/{name}") == Ended(0, b"", "")
        assert cli.run("cp", f"{shell}:/srv/odd/{name}", f"out/{name}") == Ended(0, b"", "")
        assert Path("out", name).read_bytes() == Path(name).read_bytes()
    Path("demo:").mkdir()
    Path("demo:", "b").write_text("x")
    assert cli.run("cp", "./demo:/b", f"{shell}:/srv/b") == Ended(0, b"", "")
    assert cli.run("cp", f"{shell}:/srv/b", ".") == Ended(0, b"", "")
    assert Path("b").read_text() == "x"


def test_a_tar_stream_out_begins_with_the_name_of_what_is_copied(cli: Cli, shell: str, app: Path) -> None:
    cli("cp", os.fspath(app), f"{shell}:/srv/app")
    for path, names in (
        ("/srv/app", ["app", "app/lib", "app/lib/data", "app/run"]),
        ("/srv/app/", ["app", "app/lib", "app/lib/data", "app/run"]),
        ("/srv/app/.", [".", "./lib", "./lib/data", "./run"]),
        ("/srv/app/lib/..", [".", "./lib", "./lib/data", "./run"]),
        ("/srv/app/run", ["run"]),
    ):
        ended = cli.run("cp", f"{shell}:{path}", "-")
        assert (ended.exit_code, ended.err) == (0, "")
        with tarfile.open(fileobj=io.BytesIO(ended.out)) as archive:
            assert archive.getnames() == names
            run = archive.getmember(names[-1])
            assert (run.mode, run.uid, run.gid) == (0o755, 0, 0)


@pytest.mark.parametrize("compression", ["", "z"])
def test_a_tar_stream_in_is_unpacked_into_the_directory(
    cli: Cli, shell: str, app: Path, compression: str
) -> None:
    (app / "again").hardlink_to(app / "run")
    stream = subprocess.run(
        ["tar", f"c{compression}", "-b", "512", "-C", app, "."], capture_output=True, check=True
    ).stdout
    cli("exec", shell, "--", "mkdir -p /srv/there; echo kept >/srv/there/kept; echo old >/srv/there/run")
    for target in ("/srv/there", "/srv/made/for/it"):
        assert piped(cli, "cp", "-", f"{shell}:{target}", stdin=stream) == Ended(0, b"", "")
        assert cli(
            "exec", shell, "--", f"cd {target}; ./run; ./again; stat -c %h run; sha1sum <lib/data"
        ) == (cli("exec", shell, "--", "true") + "ran\nran\n1\n" + _sha1(app / "lib" / "data"))
    assert cli("exec", shell, "--", "cat /srv/there/kept") == "kept"


def _sha1(path: Path) -> str:
    with open(path, "rb") as content:
        return (
            subprocess.run(["sha1sum"], stdin=content, capture_output=True, check=True)
            .stdout.decode()
            .rstrip()
        )


@pytest.mark.parametrize("links", [[], ["--links"]], ids=["plain", "--links"])
@pytest.mark.parametrize(
    "members",
    [
        [entry("ok"), entry("/etc/waypoint-escaped")],
        [entry("ok"), entry("../waypoint-escaped")],
        [entry("ok"), entry("device", tarfile.CHRTYPE)],
        [entry("ok"), entry("fifo", tarfile.FIFOTYPE)],
        [entry("ok"), entry("hard", tarfile.LNKTYPE, "../../etc/hostname")],
        [entry("ok"), entry("way", tarfile.SYMTYPE, "/etc"), entry("way/waypoint-escaped")],
    ],
    ids=["absolute", "above", "device", "fifo", "hard link", "through a link"],
)
def test_a_hostile_archive_is_refused_by_name_and_changes_nothing(
    cli: Cli, shell: str, members: list[tarfile.TarInfo], links: list[str]
) -> None:
    cli("exec", shell, "--", "mkdir -p /srv/place/there; echo old >/srv/place/there/ok")
    for target in ("/srv/place/there", "/srv/place/missing/dir"):
        ended = piped(cli, "cp", *links, "-", f"{shell}:{target}", stdin=tar_of(*members))
        assert (ended.exit_code, ended.out) == (1, b"")
        named = members[1].name if len(members) == 3 and not links else members[-1].name
        assert ended.err.startswith(f"waypoint: error: cannot copy 'tar:{named}': ")
    listing = "cd /srv/place; find . /etc/waypoint-escaped 2>/dev/null; cat there/ok"
    assert cli("exec", shell, "--", listing) == ".\n./there\n./there/ok\nold"
    assert not os.path.exists("/etc/waypoint-escaped")


def test_an_invalid_archive_is_reported(cli: Cli, shell: str) -> None:
    whole = tar_of(entry("file"), content=b"x" * 5000)
    for stdin in (b"", b"not an archive", whole[:2000]):
        ended = piped(cli, "cp", "-", f"{shell}:/srv/place/there", stdin=stdin)
        assert ended.exit_code == 1
        assert "not a whole tar archive" in ended.err
    assert cli("exec", shell, "--", "[ -e /srv/place ] || echo nothing") == "nothing"


def test_links_can_be_copied_as_links(cli: Cli, shell: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("/etc/hostname")
    failure = cli.failure("cp", f"{tmp_path}/tree", f"{shell}:/srv/tree")
    assert (failure.exit_code, failure.code) == (1, "copy_failed")
    assert failure.message == f"cannot copy '{tmp_path}/tree/link': it is a symbolic link"
    assert "--links" in failure.hint
    assert cli.document("cp", "--links", f"{tmp_path}/tree", f"{shell}:/srv/tree")["links"] == 1
    stream = cli.run("cp", "--links", f"{shell}:/srv/tree", "-").out
    assert piped(cli, "cp", "-", "--links", f"{shell}:/srv/two", stdin=stream) == Ended(0, b"", "")
    assert (
        cli("exec", shell, "--", "readlink /srv/tree/link /srv/two/tree/link")
        == "/etc/hostname\n/etc/hostname"
    )


def test_errors_of_cp_have_a_message_and_an_exit_code(cli: Cli, shell: str, app: Path) -> None:
    source = os.fspath(app)
    for words, exit_code, code, what in (
        ([source, f"{app}/x"], 2, "usage", "neither is"),
        ([f"{shell}:/a", f"{shell}:/b"], 2, "usage", "both are"),
        (["-", "-"], 2, "usage", "neither is"),
        ([source, "nosuch:/x"], 3, "not_found", "no session named 'nosuch'"),
        ([source, f"{shell}:nosuch:/x"], 3, "not_found", "no branch named 'nosuch'"),
        ([f"{source}/nosuch", f"{shell}:/x"], 3, "not_found", f"'{app}/nosuch'"),
        ([f"{shell}:/nosuch", source], 3, "not_found", "'main:/nosuch'"),
        ([f"{shell}:/dev/null", source], 1, "copy_failed", "'main:/dev/null': it is a device"),
        ([f"{shell}:/etc/hostname", "/"], 1, "copy_failed", "a root cannot be the destination"),
        ([source, f"{shell}:/"], 1, "copy_failed", "a root cannot be the destination"),
        ([source, f"{shell}:/proc/x"], 1, "copy_failed", "file system of the kernel"),
    ):
        failure = cli.failure("cp", *words)
        assert (failure.exit_code, failure.code) == (exit_code, code), words
        assert what in failure.message
    for words, what in (
        ([shell, source, f"{shell}:main:/x"], "neither is"),
        (["../x", source, "main:/x"], "'../x'"),
    ):
        older = cli.run("cp", *words)  # the words of the originals are answered in their words
        assert (older.exit_code, older.out) == (1, b"")
        assert older.err.startswith("Error copying: ")
        assert what in older.err
    assert cli.run("cp", source).exit_code == 2
    formal = cli.run("--json", "cp", f"{shell}:/etc/hostname", "-")
    assert (formal.exit_code, json.loads(formal.out)["error"]["code"]) == (2, "usage")


def test_a_closed_output_of_cp_is_no_error(cli: Cli, shell: str, tmp_path: Path) -> None:
    cli("exec", shell, "--", "head -c 5000000 /dev/urandom >/srv/large")
    with subprocess.Popen(
        [COMMAND, "cp", f"{shell}:/srv/large", "-"],
        env=cli.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 130


def test_an_interrupted_copy_removes_what_it_made_and_the_branch_is_busy_meanwhile(
    cli: Cli, shell: str
) -> None:
    place = cli.state_dir / "sessions" / shell / "main" / "srv" / "place"
    cli("exec", shell, "--", "mkdir /srv/place")
    with subprocess.Popen(
        [COMMAND, "cp", "-", f"{shell}:/srv/place"],
        env=cli.env,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(tar_of(entry("large"), content=bytes(5_000_000))[:3_000_000])
        process.stdin.flush()
        while not os.listdir(place):
            os.sched_yield()
        assert cli.failure("snapshot", shell, "--no-wait").code == "busy"
        assert cli("exec", shell, "--", "echo goes on") == "goes on"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr.read() == b"waypoint: interrupted\n"
    assert os.listdir(place) == []


def test_a_tar_stream_is_never_written_to_a_terminal(cli: Cli, shell: str) -> None:
    outer, inner = pty.openpty()
    try:
        ended = subprocess.run(
            [COMMAND, "cp", f"{shell}:/etc/hostname", "-"],
            env=cli.env,
            stdout=inner,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(inner)
        os.close(outer)
    assert ended.returncode == 2
    assert b"to a terminal" in ended.stderr


def test_help_explains_the_rules(cli: Cli) -> None:
    text = cli("cp", "--help")
    for words in ("SESSION[:BRANCH]:/PATH", "merged", "replaced, not followed", "tar stream", "--links"):
        assert words in text
