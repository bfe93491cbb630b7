"""Frames as the C side sends and expects them (native/init/tests has the same from there)."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.shell.protocol import (
    ErrorCode,
    FrameReader,
    How,
    ProtocolError,
    Reply,
    TerminalState,
    encode_follow,
    encode_open,
    encode_run,
    encode_signal,
    encode_spawn,
    parse_ended,
    parse_error,
    parse_output,
    parse_terminal,
)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IB", 1 + len(payload), kind) + payload


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(min_value=Reply.HELLO, max_value=Reply.ASK), st.binary(max_size=100)),
        max_size=10,
    ),
    st.integers(min_value=1, max_value=50),
)
def test_frames_are_complete_however_the_stream_is_split(sent: list[tuple[int, bytes]], size: int) -> None:
    stream = b"".join(frame(kind, payload) for kind, payload in sent)
    reader = FrameReader()
    received = []
    for at in range(0, len(stream), size):
        reader.feed(stream[at : at + size])
        while (one := reader.next_frame()) is not None:
            received.append(one)
    assert received == sent


@pytest.mark.parametrize("raw", [b"\0\0\0\0", struct.pack("<I", 1 << 30), frame(0x7F, b"")])
def test_invalid_frames_are_an_error(raw: bytes) -> None:
    reader = FrameReader()
    reader.feed(raw)
    with pytest.raises(ProtocolError):
        reader.next_frame()


def test_requests_are_encoded_as_documented() -> None:
    assert encode_run("main", b"true") == frame(0x02, b"\4\0\0\0main\1\4\0\0\0true")
    assert encode_follow(7, 9) == frame(0x03, struct.pack("<IQQ", 7, 9, 0))
    assert encode_spawn(
        ["id"], env=[], cwd="/", uid=7, gid=8, groups=[9, 10], follow=False, with_input=False, keep=False
    ) == frame(
        0x0D, struct.pack("<BIII1sII2sIIII", 0, 7, 8, 1, b"/", 1, 2, b"id", 0, 2, 9, 10)
    )  # without groups the last three are not there
    assert encode_signal("main", 2) == frame(0x04, b"\4\0\0\0main\2")
    opened = encode_open(
        "t", rows=40, columns=120, uid=0, gid=0, cwd="/", rc="r", run_line="l", argv=["/bin/sh"], env=["A=b"]
    )
    assert opened == frame(
        0x01,
        b"\1\0\0\0t\x28\0\x78\0" + b"\0" * 8 + b"\1\0\0\0/\1\0\0\0r\1\0\0\0l"
        b"\1\0\0\0\7\0\0\0/bin/sh\1\0\0\0\3\0\0\0A=b",
    )  # fmt: skip


def test_replies_are_parsed() -> None:
    assert parse_error(b"\3\0\4\0\0\0busy") == (ErrorCode.BUSY, "busy")
    assert parse_output(struct.pack("<Q", 5) + b"data") == (5, b"data")
    ended = parse_ended(struct.pack("<IBiQQ", 3, 2, 9, 100, 0))
    assert (ended.job, ended.how, ended.status, ended.length) == (3, How.SHELL_KILLED, 9, 100)
    status = parse_terminal(b"\4\0\0\0main" + struct.pack("<BIHHQQI", 2, 17, 40, 120, 0, 9, 5))
    assert (status.name, status.state, status.shell_pid, status.job) == ("main", TerminalState.RUNNING, 17, 5)
