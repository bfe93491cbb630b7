"""Users and groups as the files of a branch name them, whatever an agent has made of those files."""

import os
from pathlib import Path

import pytest

from waypoint.errors import NotFound
from waypoint.model import SessionSettings
from waypoint.session.creation.users import ROOT, User, find_user, session_user


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nwalker:x:1000:1000::/home/walker:/bin/sh\nbroken:x:no:1::/:\nshort:x\n"
    )
    (tmp_path / "etc/group").write_text(
        "root:x:0:\nwalker:x:1000:walker\naudio:x:29:walker,root\nvideo:x:44:other,walker\nodd:x:walker\n"
    )
    return os.fspath(tmp_path)


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("walker", User("walker", 1000, 1000, "/home/walker", (29, 44))),
        ("1000", User("walker", 1000, 1000, "/home/walker", (29, 44))),
        ("root", User("root", 0, 0, "/root", (29,))),
        ("walker:audio", User("walker", 1000, 29, "/home/walker")),
        ("walker:7", User("walker", 1000, 7, "/home/walker")),
        ("55", User("55", 55, 0, "/")),
        ("55:video", User("55", 55, 44, "/")),
    ],
)
def test_a_user_is_found_by_name_and_number(root: str, text: str, user: User) -> None:
    assert find_user(root, text) == user
    assert session_user(root, SessionSettings(user=text)) == user


@pytest.mark.parametrize("text", ["nobody", "broken", "walker:nobody", "-1", "4294967295", "", ":0"])
def test_an_unknown_user_is_refused_by_name(root: str, text: str) -> None:
    with pytest.raises(NotFound, match="user"):
        find_user(root, text)


def test_the_default_user_is_root(root: str) -> None:
    assert session_user(root, SessionSettings()) is ROOT


def test_a_link_to_a_file_of_the_host_is_not_followed(root: str) -> None:
    for name in ("passwd", "group"):
        os.unlink(f"{root}/etc/{name}")
        os.symlink(f"/etc/{name}", f"{root}/etc/{name}")
    with pytest.raises(NotFound):
        find_user(root, "daemon")
