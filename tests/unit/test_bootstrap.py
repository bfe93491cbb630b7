"""Where a bootstrapped Debian comes from: the archives that this host uses itself."""

from pathlib import Path

import pytest

from waypoint.errors import AbilityMissing, UsageError
from waypoint.kernel.apt.sources import AptSource
from waypoint.kernel.bases import bootstrap

MAIN = AptSource(
    uri="http://mirror.test/debian",
    suites=("bookworm", "bookworm-updates", "bookworm-backports"),
    components=("main", "contrib"),
    signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
)
SECURITY = AptSource(uri="http://mirror.test/security", suites=("bookworm-security",), components=("main",))
OTHER = AptSource(uri="http://other.test/apt", suites=("bookworm",), components=("stable",))


@pytest.fixture(autouse=True)
def bookworm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text("VERSION_CODENAME=bookworm\n")
    monkeypatch.setattr(bootstrap, "OS_RELEASE", release)


def test_the_release_of_the_host_comes_with_its_updates() -> None:
    found = bootstrap._archives("bookworm", [MAIN, SECURITY, OTHER])
    assert [(source.uri, source.suites) for source in found] == [
        (MAIN.uri, ("bookworm", "bookworm-updates")),
        (SECURITY.uri, ("bookworm-security",)),
    ]
    assert found[0].signed_by == MAIN.signed_by


def test_another_release_comes_from_the_same_mirror() -> None:
    (found,) = bootstrap._archives("trixie", [MAIN, SECURITY, OTHER])
    assert (found.uri, found.suites) == (MAIN.uri, ("trixie",))


def test_on_a_host_other_than_debian_the_error_says_what_to_do() -> None:
    with pytest.raises(AbilityMissing, match="no source of Debian packages") as caught:
        bootstrap._archives("bookworm", [OTHER])
    assert "base import" in caught.value.hint


def test_only_releases_of_debian_can_be_bootstrapped() -> None:
    assert bootstrap.debian_suite("debian:bookworm") == "bookworm"
    assert bootstrap.debian_suite("debian:trixie-slim") == "trixie"
    for reference in ("ubuntu:noble", "debian", "debian:", "debian:hamm", "bookworm"):
        with pytest.raises(UsageError, match="cannot bootstrap"):
            bootstrap.debian_suite(reference)
