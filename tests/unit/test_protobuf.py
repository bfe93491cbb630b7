"""The protobuf codec against messages of any shape."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.kernel.criu.protobuf import decode, encode

numbers = st.integers(min_value=1, max_value=2000)
values = st.one_of(st.integers(min_value=0, max_value=2**64 - 1), st.binary(max_size=300))


@settings(deadline=None)
@given(st.dictionaries(numbers, values))
def test_encoded_messages_are_decoded_unchanged(fields: dict[int, int | bytes]) -> None:
    assert decode(encode(list(fields.items()))) == fields


@settings(deadline=None)
@given(st.dictionaries(numbers, st.binary(min_size=1, max_size=20), min_size=1), st.data())
def test_a_truncated_message_is_an_error_or_has_fewer_fields(
    fields: dict[int, bytes], data: st.DataObject
) -> None:
    whole = encode(list(fields.items()))
    cut = data.draw(st.integers(min_value=1, max_value=len(whole) - 1))
    try:
        decoded = decode(whole[:cut])
    except ValueError:
        return
    assert set(decoded) < set(fields)


def test_known_messages_have_known_bytes() -> None:
    assert encode([(1, 150), (2, "testing"), (3, True)]) == b"\x08\x96\x01\x12\x07testing\x18\x01"
    assert decode(b"\x0d\x01\x02\x03\x04\x11\x01\x02\x03\x04\x05\x06\x07\x08") == {
        1: b"\x01\x02\x03\x04",
        2: b"\x01\x02\x03\x04\x05\x06\x07\x08",
    }
    with pytest.raises(ValueError, match="wire type"):
        decode(b"\x0b")
