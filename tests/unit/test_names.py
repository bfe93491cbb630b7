"""Names are checked before anything is built from them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.errors import InvalidName
from waypoint.names import parse_name


@pytest.mark.parametrize("name", ["a", "0", "Before-fix_2.1", "x" * 64])
def test_ordinary_names_are_accepted_unchanged(name: str) -> None:
    assert parse_name("checkpoint", name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a:b", "-a", "a b", "a\n", "é", "x" * 65, "a\0"]
)
def test_names_that_could_be_paths_or_options_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="invalid branch name"):
        parse_name("branch", name)


@settings(deadline=None)
@given(st.text(max_size=80))
def test_no_accepted_name_leaves_its_directory(text: str) -> None:
    try:
        name = parse_name("session", text)
    except InvalidName:
        return
    assert "/" not in name
    assert name not in (".", "..")


def test_current_is_not_the_name_of_a_checkpoint() -> None:
    with pytest.raises(InvalidName):
        parse_name("checkpoint", "current")
    assert parse_name("branch", "current") == "current"
