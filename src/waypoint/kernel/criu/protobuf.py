"""The part of Protocol Buffers that CRIU's RPC and images need: encode and decode flat messages.

A dependency for this would cost more start-up time than a whole dump. Numbers of fields are in the
modules that know their meaning (:mod:`waypoint.kernel.criu.rpc`, :mod:`waypoint.kernel.criu.images`).
"""

import os
from collections.abc import Iterable, Iterator

__all__ = ["Field", "decode", "decode_all", "encode"]

Field = tuple[int, int | bool | str | bytes]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def encode(fields: Iterable[Field]) -> bytes:
    """A message of (number, value) pairs; a number may repeat."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):  # bool is an int
            out += _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1)
        else:
            raw = os.fsencode(value) if isinstance(value, str) else value
            out += _varint(number << 3 | _BYTES) + _varint(len(raw)) + raw
    return bytes(out)


def decode(message: bytes) -> dict[int, int | bytes]:
    """The last value of each field. Raises ValueError on a truncated message."""
    return dict(decode_all(message))


def decode_all(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """All fields with their values, in order. Raises ValueError on a truncated message."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _read_varint(message, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {wire} in a protobuf message")
        if at + length > len(message):
            raise ValueError("truncated protobuf message")
        yield number, message[at : at + length]
        at += length


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("truncated protobuf message")
