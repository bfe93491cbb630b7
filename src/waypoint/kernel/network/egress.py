"""Where the processes of a cgroup may send packets: rules that the kernel keeps for as long as the cgroup exists.

They are small BPF programs on the cgroup. One runs when a socket is connected, and makes that fail at once. The other
sees every packet, whatever kind of socket it comes from, and drops what no rule permits. Nothing of the host's
firewall is touched, and there is nothing to remove: the kernel removes the programs with the cgroup.

The processes are those of the user-mode NAT (:mod:`waypoint.kernel.network.slirp`), outside the session: every packet
that leaves the session ends there as a call of an ordinary socket, however it was made inside.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from waypoint.errors import AbilityMissing
from waypoint.kernel.syscalls import address_of, bpf, buffer_of

__all__ = ["LINK_LOCAL", "LOOPBACK", "Rule", "confine", "require_confinement", "silenced"]

# To connect to any of these is to connect to the host itself.
LOOPBACK = (IPv4Network("0.0.0.0/8"), IPv4Network("127.0.0.0/8"))
# At an address of this network, a cloud gives its secrets to whoever asks from the host itself.
LINK_LOCAL = IPv4Network("169.254.0.0/16")

CRIU_MARK = 0xC114  # of its packets
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 5, 8, 9
_ALLOW_MULTI = 2  # in addition to programs that the host has attached further up
_TYPE_SKB, _TYPE_ADDRESS = 8, 18
_EGRESS, _CONNECT4 = 1, 10
_LICENSE = b"Apache-2.0\0"

_IPV4, _TCP, _UDP = 0x0800, 6, 17
# Operations; those that end in 32 look at the lower half of a register only.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x61, 0x69, 0x71
_MOVE, _MOVE32, _SET, _ADD, _AND, _AND32, _SHIFT_LEFT = 0xBF, 0xBC, 0xB7, 0x07, 0x57, 0x54, 0x67
_FROM_BIG_ENDIAN = 0xDC
_JUMP_IF_EQUAL32, _JUMP_UNLESS_EQUAL32, _CALL, _EXIT = 0x16, 0x56, 0x85, 0x95
_SKB_LOAD_BYTES = 26  # the number of a function of the kernel
# Offsets in struct bpf_sock_addr, in struct __sk_buff, and in the header of a packet.
_CALLED_ADDRESS, _CALLED_PORT = 4, 24
_SKB_MARK, _SKB_PROTOCOL = 8, 16
_IP_LENGTH, _IP_PROTOCOL, _IP_DESTINATION, _PORT_AFTER_HEADER = 0, 9, 16, 2
_CONTEXT, _ADDRESS, _PORT, _PROTOCOL = 9, 6, 7, 8  # registers that a call leaves alone
_FRAME, _SCRATCH = 10, -4


@dataclass(frozen=True, slots=True)
class Rule:
    """Whether packets to ``network``, on one port or (None) on any and without one, may leave."""

    network: IPv4Network
    port: int | None
    permits: bool


def confine(cgroup: Path, rules: Sequence[Rule], *, otherwise: bool) -> None:
    """Let the first rule that matches decide for each packet of the cgroup's sockets, or else ``otherwise``.

    IPv6 is dropped. The rules apply only to sockets that members of the cgroup make from now on.
    """
    verdicts = _verdicts(rules, otherwise=otherwise)
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _attach(directory, _TYPE_SKB, _EGRESS, _read_packet() + verdicts)
        _attach(directory, _TYPE_ADDRESS, _CONNECT4, _read_address() + verdicts)
    finally:
        os.close(directory)


def require_confinement() -> None:
    """Raise AbilityMissing unless the kernel accepts such programs from us."""
    try:
        os.close(_load_program(_TYPE_SKB, _EGRESS, _return(permits=True)))
    except OSError as error:
        raise AbilityMissing(
            f"the kernel accepts no BPF program for a cgroup: {error.strerror}",
            hint="a kernel with CONFIG_CGROUP_BPF; in a container: start it with --privileged",
        ) from error


@contextmanager
def silenced(cgroup: Path) -> Iterator[None]:
    """Let no socket that members of the cgroup make send a packet for the length of the block, not even to each other.

    Only packets by which CRIU brings a connection into its state pass. Raises AbilityMissing.
    """
    require_confinement()
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        by_criu = _op(_LOAD_WORD, 2, 1, offset=_SKB_MARK) + _if_equal(2, CRIU_MARK, _return(permits=True))
        program = _load_program(_TYPE_SKB, _EGRESS, by_criu + _return(permits=False))
        try:
            attached = struct.pack("=III", directory, program, _EGRESS)
            bpf(_PROG_ATTACH, attached + struct.pack("=I", _ALLOW_MULTI), "a cgroup's egress")
            try:
                yield
            finally:
                bpf(_PROG_DETACH, attached, "a cgroup's egress")
        finally:
            os.close(program)
    finally:
        os.close(directory)


def _attach(cgroup: int, program_type: int, attach_type: int, instructions: bytes) -> None:
    program = _load_program(program_type, attach_type, instructions)
    try:
        attributes = struct.pack("=IIII", cgroup, program, attach_type, _ALLOW_MULTI)
        bpf(_PROG_ATTACH, attributes, "a cgroup's egress")
    finally:
        os.close(program)


def _load_program(program_type: int, attach_type: int, instructions: bytes) -> int:
    code, license_ = buffer_of(instructions), buffer_of(_LICENSE)
    attributes = struct.pack(
        "=IIQQIIQII16sII",
        *(program_type, len(instructions) // 8, address_of(code), address_of(license_)),
        *(0, 0, 0, 0, 0, b"waypoint", 0, attach_type),
    )
    return bpf(_PROG_LOAD, attributes, "a BPF program")


# -- the programs; each instruction is 8 bytes: operation, registers, offset of a jump or of memory, number


def _op(operation: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    return struct.pack("<BBhI", operation, source << 4 | to, offset, number & 0xFFFFFFFF)


def _join(instructions: Iterable[bytes]) -> bytes:
    return b"".join(instructions)


def _move(to: int, source: int) -> bytes:
    return _op(_MOVE, to, source)


def _set(to: int, number: int) -> bytes:
    return _op(_SET, to, number=number)


def _load(operation: int, to: int, source: int, offset: int, bits: int) -> bytes:
    """Load a number in network byte order from memory."""
    return _op(operation, to, source, offset=offset) + _op(_FROM_BIG_ENDIAN, to, number=bits)


def _return(permits: bool) -> bytes:
    return _set(0, int(permits)) + _op(_EXIT)


def _if_equal(register: int, number: int, then: bytes) -> bytes:
    return _op(_JUMP_UNLESS_EQUAL32, register, offset=len(then) // 8, number=number) + then


def _unless_equal(register: int, number: int, then: bytes) -> bytes:
    return _op(_JUMP_IF_EQUAL32, register, offset=len(then) // 8, number=number) + then


def _read_address() -> bytes:
    """Load the destination of a call to connect."""
    return _load(_LOAD_WORD, _ADDRESS, 1, _CALLED_ADDRESS, 32) + _load(_LOAD_WORD, _PORT, 1, _CALLED_PORT, 16)


def _read_packet() -> bytes:
    """Load the destination of a packet from its headers; the port is 0 if the packet has none."""
    deny = _return(permits=False)
    read_port = _join(
        (
            _copy(_set(2, _IP_LENGTH), 1),
            _op(_LOAD_BYTE, 2, _FRAME, offset=_SCRATCH),
            *(
                _op(_AND, 2, number=0xF),
                _op(_SHIFT_LEFT, 2, number=2),
                _op(_ADD, 2, number=_PORT_AFTER_HEADER),
            ),
            _copy(b"", 2),
            _load(_LOAD_HALF, _PORT, _FRAME, _SCRATCH, 16),
        )
    )
    return _join(
        (
            _move(_CONTEXT, 1),
            _load(_LOAD_WORD, 2, 1, _SKB_PROTOCOL, 16),
            _unless_equal(2, _IPV4, deny),
            _copy(_set(2, _IP_DESTINATION), 4),
            _load(_LOAD_WORD, _ADDRESS, _FRAME, _SCRATCH, 32),
            _copy(_set(2, _IP_PROTOCOL), 1),
            _op(_LOAD_BYTE, _PROTOCOL, _FRAME, offset=_SCRATCH),
            _set(_PORT, 0),
            _op(_JUMP_IF_EQUAL32, _PROTOCOL, offset=1, number=_TCP),  # skip the next instruction
            _if_equal(_PROTOCOL, _UDP, read_port),
        )
    )


def _copy(set_offset: bytes, length: int) -> bytes:
    """Copy ``length`` bytes of the packet, from the offset in register 2, to the frame; if that fails, deny."""
    return _join(
        (
            *(set_offset, _move(1, _CONTEXT), _move(3, _FRAME), _op(_ADD, 3, number=_SCRATCH)),
            *(
                _set(4, length),
                _op(_CALL, number=_SKB_LOAD_BYTES),
                _unless_equal(0, 0, _return(permits=False)),
            ),
        )
    )


def _verdicts(rules: Sequence[Rule], *, otherwise: bool) -> bytes:
    return _join(_verdict(rule) for rule in rules) + _return(otherwise)


def _verdict(rule: Rule) -> bytes:
    answer = _return(rule.permits)
    if rule.port is not None:
        answer = _if_equal(_PORT, rule.port, answer)
    return _join(
        (
            _op(_MOVE32, 2, _ADDRESS),
            _op(_AND32, 2, number=int(rule.network.netmask)),
            _if_equal(2, int(rule.network.network_address), answer),
        )
    )
