"""Inside a branch, as root: ask for a connection with a hand-made frame, which bypasses the rules of the branch's
kernel. Prints ``open`` if a server has answered, ``closed`` if not.

Usage: raw_frame.py ADDRESS PORT
"""

import fcntl
import socket
import struct
import sys

DEVICE, SOURCE = "tap0", "10.0.2.100"
GATEWAY_MAC = b"\x52\x55\x0a\x00\x02\x02"
SIOCGIFHWADDR, IPV4, ICMP, TCP, SYN, SYN_ACK = 0x8927, 0x0800, 1, 6, 0x02, 0x12
WAIT_S = 20.0


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


def syn(address: str, port: int) -> bytes:
    ends = socket.inet_aton(SOURCE) + socket.inet_aton(address)
    segment = struct.pack("!HHIIBBHHH", 40000, port, 1, 0, 5 << 4, SYN, 65535, 0, 0)
    pseudo = ends + struct.pack("!BBH", 0, TCP, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 1, 0, 64, TCP, 0) + ends
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + segment


def main(address: str, port: str) -> str:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(IPV4)) as wire:
        wire.bind((DEVICE, 0))
        wire.settimeout(WAIT_S)
        mac = fcntl.ioctl(wire, SIOCGIFHWADDR, struct.pack("256s", DEVICE.encode()))[18:24]
        wire.send(GATEWAY_MAC + mac + struct.pack("!H", IPV4) + syn(address, int(port)))
        while True:
            try:
                packet = wire.recv(1 << 16)[14:]
            except TimeoutError:
                return "closed"
            if packet[9] == ICMP:
                return "closed"
            if packet[9] == TCP and packet[12:16] == socket.inet_aton(address):
                return "open" if packet[33] & SYN_ACK == SYN_ACK else "closed"


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]) + "\n")
