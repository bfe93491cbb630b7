"""Reading apt's sources, and the errors of provisioning when the host lacks something."""

import json
from pathlib import Path

import pytest

from waypoint.errors import AbilityMissing
from waypoint.kernel.apt.sources import (
    AptSource,
    debian_archives,
    parse_deb822,
    parse_one_line,
    read_sources,
)
from waypoint.kernel.criu import provision
from waypoint.kernel.criu.provision import find_prefix_criu, minimum_version, parse_version, provision_criu

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

DEB822 = f"""\
# made by the installer
Types: deb deb-src
# http://old.example/debian
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


def say_nothing(_: str) -> None:
    pass


class TestDeb822:
    def test_a_comment_between_two_fields_is_ignored(self) -> None:
        first = parse_deb822(DEB822)[0]
        assert first == AptSource(
            uri="http://mirror.example/debian",
            suites=("bookworm", "bookworm-updates"),
            components=("main", "contrib"),
            signed_by=KEYRING,
        )

    def test_disabled_and_source_only_paragraphs_give_no_sources(self) -> None:
        assert [source.uri for source in parse_deb822(DEB822)] == [
            "http://mirror.example/debian",
            "http://mirror.example/debian-security",
        ]

    def test_an_inline_key_block_is_kept_line_by_line(self) -> None:
        text = (
            "types: deb\nuris: http://m.example/debian\nsuites: bookworm\ncomponents: main\n"
            "signed-by:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n -----END PGP PUBLIC KEY BLOCK-----\n"
        )
        (source,) = parse_deb822(text)
        assert source.signed_by is not None
        assert source.signed_by.splitlines()[2:] == [" .", " mQINBF", " -----END PGP PUBLIC KEY BLOCK-----"]

    def test_several_uris_are_several_archives(self) -> None:
        text = "Types: deb\nURIs: http://a.example/debian\n http://b.example/debian\nSuites: sid\nComponents: main\n"
        assert [source.uri for source in parse_deb822(text)] == [
            "http://a.example/debian",
            "http://b.example/debian",
        ]

    @pytest.mark.parametrize(
        "text", ["", "\n\n\n", "no colon here\n", " continuation of nothing\n", "Types:\n"]
    )
    def test_invalid_text_gives_no_sources(self, text: str) -> None:
        assert parse_deb822(text) == []


class TestOneLine:
    def test_options_and_trailing_comments_are_understood(self) -> None:
        text = (
            f"deb [ arch=amd64 signed-by={KEYRING} ] http://m.example/debian bookworm main contrib # mine\n"
        )
        assert parse_one_line(text) == [
            AptSource(
                uri="http://m.example/debian",
                suites=("bookworm",),
                components=("main", "contrib"),
                signed_by=KEYRING,
            )
        ]

    @pytest.mark.parametrize(
        "line",
        [
            "# deb http://m.example/debian bookworm main",
            "deb-src http://m.example/debian bookworm main",
            "deb http://flat.example ./",
            "deb [broken http://m.example/debian",
            "nonsense",
        ],
    )
    def test_other_lines_give_no_sources(self, line: str) -> None:
        assert parse_one_line(line) == []


class TestFiles:
    def test_files_apt_would_ignore_are_ignored(self, tmp_path: Path) -> None:
        parts = tmp_path / "sources.list.d"
        parts.mkdir()
        line = "deb http://{}.example/debian bookworm main\n"
        (tmp_path / "sources.list").write_text(line.format("main"))
        (parts / "good.list").write_text(line.format("good"))
        for odd in ("old.list.disabled-by-someone", "copy.list~", "two words.list", "README"):
            (parts / odd).write_text(line.format("odd"))
        (parts / "directory.list").mkdir()
        assert [source.uri for source in read_sources(tmp_path)] == [
            "http://main.example/debian",
            "http://good.example/debian",
        ]

    def test_a_host_without_any_source_list_has_no_sources(self, tmp_path: Path) -> None:
        assert read_sources(tmp_path / "nothing") == []


class TestChoice:
    def source(self, uri: str, suite: str = "bookworm", component: str = "main") -> AptSource:
        return AptSource(uri=uri, suites=(suite,), components=(component,))

    def test_debians_own_archive_comes_before_a_third_party_with_the_same_suite(self) -> None:
        third = self.source("http://vendor.example/packages")
        debian = self.source("http://mirror.example/debian/")
        assert debian_archives([third, debian], "bookworm") == [debian, third]

    def test_archives_of_other_suites_or_components_do_not_count(self) -> None:
        sources = [
            self.source("http://mirror.example/debian-security", suite="bookworm-security"),
            self.source("http://vendor.example/debian", component="stable"),
            self.source("cdrom:[Debian 12]/debian"),
        ]
        assert debian_archives(sources, "bookworm") == []

    def test_the_suite_stable_counts_as_the_release(self) -> None:
        assert debian_archives([self.source("http://m.example/debian", suite="stable")], "bookworm")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Version: 4.1.1\nGitID: v4.1.1", (4, 1, 1)),
        ("Version: 3.17", (3, 17)),
        ("none", ()),
        ("6.18.44-fc", (6, 18, 44)),
    ],
)
def test_versions_are_compared_as_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


class TestPrefix:
    def test_a_finished_prefix_is_found_without_starting_anything(self, tmp_path: Path) -> None:
        loader = tmp_path / "ld.so"
        loader.touch(mode=0o755)
        command = [str(loader), "criu"]
        (tmp_path / provision.MANIFEST).write_text(json.dumps({"command": command, "version": "4.2.1"}))
        build = find_prefix_criu(tmp_path)
        assert build is not None
        assert (build.command, build.version, build.origin) == (tuple(command), "4.2.1", "prefix")
        assert provision_criu(tmp_path, say_nothing) == build

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"command": ["/nonexistent"], "version": "4.2"}'])
    def test_an_invalid_manifest_is_ignored(self, tmp_path: Path, text: str) -> None:
        (tmp_path / provision.MANIFEST).write_text(text)
        assert find_prefix_criu(tmp_path) is None

    def test_no_package_source_is_an_error_with_a_hint_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provision, "APT_DIR", tmp_path / "no-apt")
        with pytest.raises(AbilityMissing, match="no source of Debian packages") as caught:
            provision_criu(tmp_path / "criu", say_nothing)
        assert "waypoint setup" in caught.value.hint
        assert sorted(path.name for path in tmp_path.iterdir()) == ["criu.lock"]

    def test_an_empty_mirror_is_an_error_with_a_hint_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "apt").mkdir()
        (tmp_path / "apt" / "sources.list").write_text(f"deb file:{tmp_path}/empty bookworm main\n")
        release = tmp_path / "os-release"
        release.write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
        monkeypatch.setattr(provision, "APT_DIR", tmp_path / "apt")
        monkeypatch.setattr(provision, "OS_RELEASE", release)
        said: list[str] = []
        with pytest.raises(AbilityMissing, match="cannot get CRIU") as caught:
            provision_criu(tmp_path / "criu", said.append)
        assert "apt-get update" in caught.value.hint
        assert said[-2:] == ["criu: downloading from Debian forky", "criu: downloading from Debian sid"]
        assert not list(tmp_path.glob("criu*/")), "no directory is left"

    def test_an_unknown_machine_type_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("platform.machine", lambda: "vax")
        with pytest.raises(AbilityMissing, match="vax"):
            provision_criu(tmp_path / "criu", say_nothing)

    def test_only_a_loader_inside_the_prefix_is_used(self, tmp_path: Path) -> None:
        libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
        libraries.mkdir(parents=True)
        (tmp_path / "usr/lib64").mkdir()
        (tmp_path / "usr/sbin").mkdir()
        (tmp_path / "usr/sbin/criu").touch()
        (tmp_path / "usr/lib64/ld-linux-x86-64.so.2").symlink_to("/etc/hostname")
        with pytest.raises(AbilityMissing):
            provision._command(tmp_path, "x86_64-linux-gnu")
        (libraries / "ld-linux-x86-64.so.2").touch()
        assert provision._command(tmp_path, "x86_64-linux-gnu") == (
            str(libraries / "ld-linux-x86-64.so.2"),
            "--library-path",
            str(libraries),
            str(tmp_path / "usr/sbin/criu"),
        )


@pytest.mark.parametrize(
    ("kernel", "minimum"),
    [("5.15.0-91-generic", (4, 1)), ("6.15.9", (4, 1)), ("6.16.0-rc1", (4, 2)), ("7.0", (4, 2))],
)
def test_the_required_version_of_criu_depends_on_the_kernel(kernel: str, minimum: tuple[int, ...]) -> None:
    assert minimum_version(kernel) == minimum
