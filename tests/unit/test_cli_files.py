"""Which words of ``waypoint cp`` mean a branch and which a path on the host; the progress of a long copy."""

import pytest

from waypoint.cli import files
from waypoint.cli.files import Endpoint, Progress, parse_endpoint
from waypoint.model import CopyResult


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("demo:/etc/hosts", Endpoint("demo", "main", "/etc/hosts")),
        ("demo:/", Endpoint("demo", "main", "/")),
        ("demo:fork-1:/srv/app/", Endpoint("demo", "fork-1", "/srv/app/")),
        ("demo:/a:/b", Endpoint("demo", "main", "/a:/b")),
        ("demo://srv", Endpoint("demo", "main", "//srv")),
    ],
)
def test_these_words_mean_a_branch(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "-",
        ".",
        "a:b",
        "./a:b",
        "./a:/b",
        "/srv/a:/b",
        "demo:relative",
        "demo:",
        ":/x",
        "a:b:c:/x",
        "é:/x",
        "",
    ],
)
def test_these_words_mean_a_path_on_the_host(text: str) -> None:
    assert parse_endpoint(text) == Endpoint("", "", text)


def test_after_the_session_a_word_names_only_the_branch() -> None:
    assert parse_endpoint("fork-1:/x", session="demo") == Endpoint("demo", "fork-1", "/x")
    assert parse_endpoint("demo:fork-1:/x", session="demo") == Endpoint("", "", "demo:fork-1:/x")


COPIED = CopyResult(files=3, directories=0, links=0, size_bytes=5 << 20)


def test_a_long_copy_shows_its_progress_and_clears_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr(files, "PROGRESS_EVERY_S", 60.0)
    progress = Progress(is_wanted=True)
    progress(COPIED)
    progress(COPIED)  # too soon for another report
    assert capsys.readouterr() == ("", "\rwaypoint: 3 files, 5.0 MiB")
    progress.clear()
    assert capsys.readouterr().err == "\r" + " " * len("waypoint: 3 files, 5.0 MiB") + "\r"


def test_a_short_or_unwatched_copy_shows_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "PROGRESS_AFTER_S", 60.0)
    short = Progress(is_wanted=True)
    monkeypatch.setattr(files, "PROGRESS_AFTER_S", 0.0)
    for progress in (short, Progress(is_wanted=False)):
        progress(COPIED)
        progress.clear()
    assert capsys.readouterr() == ("", "")
