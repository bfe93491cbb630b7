"""Which paths of the host are hidden, from patterns, homes, mounts and the user's options."""

import json
import os
from pathlib import Path

import pytest

from waypoint.engine import whiteouts
from waypoint.errors import UsageError
from waypoint.model import Base, BaseKind
from waypoint.session.creation.hidden_paths import DEFAULT_HIDDEN, Home, choose_hidden, expand, find_homes

HOST = Base(kind=BaseKind.HOST, path=Path("/"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    (path / ".ssh").mkdir(parents=True)
    (path / ".config").mkdir()
    (path / ".bash_history").touch()
    (path / ".zsh_history-1.tmp").touch()
    return path


def chosen(
    home: Path, *, hide: list[str] | None = None, show: list[str] | None = None, start: str = "/srv"
) -> set[str]:
    """The paths that are hidden in ``home``, relative to it."""
    hidden, _ = choose_hidden(
        HOST,
        start,
        state_dir="/state",
        hide=hide or [],
        show=show or [],
        environ={"HOME": os.fspath(home), "XDG_CONFIG_HOME": f"{home}/x"},
    )
    return {path.removeprefix(f"{home}/") for path in hidden if path.startswith(f"{home}/")}


def test_private_paths_of_a_person_are_hidden_even_before_they_exist(home: Path) -> None:
    hidden = chosen(home)
    assert {".ssh", ".bash_history", ".zsh_history-1.tmp"} <= hidden
    assert {".aws", ".config/gcloud"} <= hidden  # they do not exist yet
    assert ".local" in hidden  # its directory does not exist yet either
    (home / ".local").mkdir()
    assert {".local/share"} == {path for path in chosen(home) if path.startswith(".local")}
    assert not any(path.startswith(".local") for path in chosen(home, show=["~/.local"]))
    assert ".config/gh" not in chosen(home, show=["~/.config/gh"])


def test_for_a_system_user_only_existing_paths_are_hidden(tmp_path: Path, home: Path) -> None:
    people, system = Home(os.fspath(home), True), Home(os.fspath(home), False)
    assert expand(["~/.ssh", "~/.aws"], [people]) == {f"{home}/.ssh", f"{home}/.aws"}
    assert expand(["~/.ssh", "~/.aws"], [system]) == {f"{home}/.ssh"}


def test_homes_of_all_users_and_of_the_caller_are_found(tmp_path: Path) -> None:
    for name in ("person", "system", "caller", "linked"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    passwd = tmp_path / "passwd"
    passwd.write_text(
        f"person:x:1000:1000::{tmp_path}/person:/bin/sh\nsystem:x:33:33::{tmp_path}/system:/bin/sh\n"
        f"linked:x:1001:1001::{tmp_path}/link:/bin/sh\nroot:x:0:0::/:/bin/sh\nbroken line\n"
        f"gone:x:1002:1002::{tmp_path}/gone:/bin/sh\nbin:x:2:2::/usr/bin:/bin/sh\n"
    )
    homes = {home.path: home.is_of_a_person for home in find_homes({"HOME": f"{tmp_path}/caller"}, passwd)}
    ours = {
        path.removeprefix(f"{tmp_path}/"): person for path, person in homes.items() if str(tmp_path) in path
    }
    assert ours == {"person": True, "system": False, "linked": True, "caller": True}
    assert "/" not in homes
    assert "/usr/bin" not in homes


def test_a_link_is_followed_and_its_target_hidden(home: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (home / ".gnupg").symlink_to(keys)
    hidden, _ = choose_hidden(
        HOST, "/srv", state_dir="/state", hide=[], show=[], environ={"HOME": os.fspath(home)}
    )
    assert os.fspath(keys) in hidden
    assert f"{home}/.gnupg" not in hidden  # the link points to an empty directory


def test_the_user_can_add_and_remove_paths(home: Path) -> None:
    (home / "notes").touch()
    assert "notes" in chosen(home, hide=["~/notes"])
    assert "notes" in chosen(home, hide=[f"{home}/n*"])
    assert ".ssh" not in chosen(home, show=["~/.ssh"])
    assert not any(path.startswith(".config") for path in chosen(home, show=[f"{home}/.config"]))
    assert chosen(home, show=["/"]) == set()


def test_options_override_the_configuration_file_which_overrides_the_default(home: Path) -> None:
    config = home / "x/waypoint/config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"hide": ["~/notes"], "show": ["~/.ssh"]}))
    hidden = chosen(home)
    assert "notes" in hidden
    assert ".ssh" not in hidden
    assert ".ssh" in chosen(home, hide=["~/.ssh"])
    assert "notes" not in chosen(home, show=["~/notes"])


def test_the_start_directory_is_not_hidden(home: Path) -> None:
    hidden, shown = choose_hidden(
        HOST, f"{home}/.ssh/deep", state_dir="/state", hide=[], show=[], environ={"HOME": os.fspath(home)}
    )
    assert f"{home}/.ssh" not in hidden
    assert f"{home}/.ssh" in shown


@pytest.mark.parametrize(
    "pattern", ["relative", "", "~user/x", "/a/../b", "/a\0b", "/", "/no/such/place", "/no*such"]
)
def test_an_invalid_pattern_is_refused(home: Path, pattern: str) -> None:
    with pytest.raises(UsageError):
        chosen(home, hide=[pattern])


def test_a_part_of_a_hidden_directory_cannot_be_shown(home: Path) -> None:
    (home / ".ssh/config").touch()
    with pytest.raises(UsageError, match=r"\.ssh is hidden as a whole"):
        chosen(home, show=["~/.ssh/config"])


def test_paths_are_hidden_only_over_the_hosts_root(tmp_path: Path) -> None:
    base = Base(kind=BaseKind.DIRECTORY, path=tmp_path)
    assert choose_hidden(base, "/", state_dir="/state", hide=[], show=[], environ={}) == ((), ())
    with pytest.raises(UsageError, match="the base is another"):
        choose_hidden(base, "/", state_dir="/state", hide=["/etc"], show=[], environ={})


def test_paths_below_hidden_ones_are_left_out() -> None:
    assert whiteouts.outermost(["/a/b", "/a", "/a-b", "/ab/c", "/a/b/c"]) == ["/a", "/a-b", "/ab/c"]


def test_only_the_passwords_of_a_shadow_file_are_removed() -> None:
    lines = (
        b"root:$y$j9T$x$y:1:0:99999:7:::\n",
        b"daemon:*:1::::::\n",
        b"me::1::::::\n",
        b"off:!$6$abc:1::::::\n",
        b"odd\n",
    )
    assert [whiteouts._without_hash(line) for line in lines] == [
        b"root:!:1:0:99999:7:::\n",
        b"daemon:*:1::::::\n",
        b"me::1::::::\n",
        b"off:!:1::::::\n",
        b"odd\n",
    ]


def test_only_the_secrets_of_npms_settings_are_removed() -> None:
    kept = (b"fund=false\n", b"registry=https://npm.example/\n", b"; a comment\n", b"\n")
    secret = (
        b"//npm.example/:_authToken=abc\n",
        b"_auth = abc\n",
        b"//npm.example/:_password=abc\n",
        b"https-proxy=http://me:abc@proxy.example:3128\n",
    )
    assert [whiteouts._without_npm_secret(line) for line in kept] == list(kept)
    assert [whiteouts._without_npm_secret(line) for line in secret] == [b""] * len(secret)


def test_the_documented_list_matches_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs/sharing.md").read_text()
    documented = {}
    for line in text.splitlines():
        if line.startswith("| ") and "`" in line:
            name, patterns = line.strip("| ").split(" | ")
            documented[name] = tuple(pattern.strip("`") for pattern in patterns.split(" "))
    assert documented == DEFAULT_HIDDEN
