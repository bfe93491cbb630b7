"""Terminal output is turned back into what the command wrote."""

from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.session.commands.following import Newlines


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(min_value=1, max_value=7))
def test_the_terminals_change_of_line_feeds_is_undone_exactly(data: bytes, size: int) -> None:
    shown = data.replace(b"\n", b"\r\n")
    newlines = Newlines()
    chunks = [newlines.convert(shown[at : at + size]) for at in range(0, len(shown), size)]
    assert b"".join(chunks) + newlines.end() == data
