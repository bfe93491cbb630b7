"""Try to get out of a branch, or to touch what it does not own: ``escape.py NAME [ARGUMENT…]``.

Prints ``refused: WHY`` if the kernel refused it, ``got through: WHAT`` if it did not.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)

# From 424 on, system call numbers are the same on all architectures.
_NUMBERS = {
    "x86_64": {
        "pivot_root": 155, "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "mknodat": 259,
        "syslog": 103, "reboot": 169, "clone": 56, "acct": 163, "swapon": 167, "quotactl": 179,
    },
    "aarch64": {
        "pivot_root": 41, "init_module": 105, "delete_module": 106, "kexec_load": 104, "add_key": 217,
        "request_key": 218, "keyctl": 219, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268,
        "finit_module": 273, "kexec_file_load": 294, "bpf": 280, "userfaultfd": 282, "mknodat": 33,
        "syslog": 116, "reboot": 142, "clone": 220, "acct": 89, "swapon": 224, "quotactl": 60,
    },
}[platform.machine()]  # fmt: skip
_NUMBERS |= {
    "io_uring_setup": 425,
    "open_tree": 428,
    "fsopen": 430,
    "clone3": 435,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
NAMESPACES = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000,
              "net": 0x40000000, "cgroup": 0x2000000}  # fmt: skip


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def call(name: str, *arguments: int | bytes | None) -> int:
    return checked(_libc.syscall(_NUMBERS[name], *arguments))


def syscall(name: str) -> str:
    """Make a call with meaningless arguments: if it is allowed, the error is not EPERM."""
    return str(call(name, 0, 0, 0, 0, 0))


def mount(source: str, target: str, kind: str, flags: str) -> str:
    words = (word.encode() or None for word in (source, target, kind))
    return str(checked(_libc.mount(*words, ctypes.c_ulong(int(flags, 16)), None)))


def unmount(target: str) -> str:
    return str(checked(_libc.umount2(target.encode(), 2)))


def unshare(kind: str) -> str:
    return str(checked(_libc.unshare(NAMESPACES[kind])))


def clone(kind: str) -> str:
    if call("clone", NAMESPACES[kind] | 17, 0, 0, 0, 0) == 0:
        os._exit(0)
    return "a process in a namespace of its own"


def set_clock() -> str:
    time = struct.pack("qq", 1, 0)
    return str(checked(_libc.clock_settime(0, time)))


def set_hostname() -> str:
    socket.sethostname("taken")
    return socket.gethostname()


def write(path: str) -> str:
    with open(path, "r+b", buffering=0) as file:
        return f"wrote {file.write(b'1')} byte to {path}"


def read(path: str) -> str:
    with open(path, "rb") as file:
        return repr(file.read(64))


def make_disk() -> str:
    os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0))
    return "a disk"


def kernel_log() -> str:
    return str(call("syslog", 3, ctypes.create_string_buffer(100).raw, 100))


def trace(pid: str) -> str:
    return str(checked(_libc.ptrace(0x4206, int(pid), None, None)))


def signal(pid: str) -> str:
    os.kill(int(pid), 0)
    return f"process {pid} is in reach"


def connect_unix(name: str) -> str:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(name.replace("@", "\0", 1))
        end.settimeout(20)
        if not end.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, "closed at once")
    return f"spoke with {name}"


def connect(address: str, port: str) -> str:
    with socket.create_connection((address, int(port)), 2):
        return f"connected to {address}"


def send_packet(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as end:
        return str(end.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0), (address, 0)))


def socket_of(family: str) -> str:
    with socket.socket(int(family), socket.SOCK_STREAM):
        return "a socket"


def leave_chroot(path: str) -> str:
    """The classic escape: keep a descriptor of the outside root, and climb up from there."""
    os.makedirs("/tmp/jail", exist_ok=True)
    root = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return listing(path)


def listing(path: str) -> str:
    names = os.listdir(path)
    if not names:
        raise OSError(errno.ENOENT, "nothing is there")
    return f"{path} has {names}"


def link(source: str) -> str:
    os.link(source, "/tmp/linked")
    return "a hard link"


def main() -> None:
    attempts: tuple[Callable[..., str], ...] = (
        *(
            syscall,
            mount,
            unmount,
            unshare,
            clone,
            set_clock,
            set_hostname,
            write,
            read,
            make_disk,
            kernel_log,
        ),
        *(trace, signal, connect_unix, connect, send_packet, socket_of, leave_chroot, listing, link),
    )
    attempt = {one.__name__: one for one in attempts}[sys.argv[1]]
    try:
        sys.stdout.write(f"got through: {attempt(*sys.argv[2:])}\n")
    except OSError as error:
        sys.stdout.write(f"refused: {errno.errorcode.get(error.errno or 0, error)}\n")


if __name__ == "__main__":
    main()
