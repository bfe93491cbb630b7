"""Descriptors that a process holds: files in various states, pipes, sockets, mappings, locks."""

import fcntl
import hashlib
import mmap
import os
import select
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from workloads.pausing import run

BASE_FILE = Path("original.txt")  # in the workspace, so in the base
BASE_TEXT = b"text of the base\n"
LOCK_FILES = ("locked-whole", "locked-region", "locked-shared")


def deleted_file() -> Iterator[None]:
    """Open, written, unlinked: no other process can open it."""
    with open("/tmp/deleted", "w+b") as file:
        file.write(b"before ")
        file.flush()
        os.unlink("/tmp/deleted")
        yield
        file.write(b"after")
        file.seek(0)
        assert file.read() == b"before after"
        assert not os.path.exists("/tmp/deleted")
        assert os.fstat(file.fileno()).st_nlink == 0


def big_deleted_file() -> Iterator[None]:
    """20 MB are far beyond CRIU's default limit for deleted files."""
    content = os.urandom(20_000_000)
    expected = hashlib.sha256(content).digest()
    with open("/tmp/big", "w+b") as file:
        file.write(content)
        file.flush()
        os.unlink("/tmp/big")
        del content
        yield
        file.seek(0)
        assert hashlib.sha256(file.read()).digest() == expected


def deleted_base_file() -> Iterator[None]:
    """A file of the base, open for reading, then deleted in the branch."""
    with open(BASE_FILE, "rb") as file:
        assert file.read(5) == BASE_TEXT[:5]
        BASE_FILE.unlink()
        yield
        assert file.read() == BASE_TEXT[5:]
        assert not BASE_FILE.exists()


def replaced_file() -> Iterator[None]:
    """The descriptor has the old file, the name the new one, as after an editor or a package manager."""
    Path("/tmp/name").write_bytes(b"old")
    with open("/tmp/name", "rb") as file:
        Path("/tmp/name.new").write_bytes(b"new")
        os.rename("/tmp/name.new", "/tmp/name")
        yield
        assert file.read() == b"old"
        assert Path("/tmp/name").read_bytes() == b"new"


def renamed_file() -> Iterator[None]:
    with open("/tmp/first", "w+b") as file:
        file.write(b"one ")
        file.flush()
        os.rename("/tmp/first", "/tmp/second")
        yield
        file.write(b"two")
        file.flush()
        assert Path("/tmp/second").read_bytes() == b"one two"


def deleted_name_of_linked_file() -> Iterator[None]:
    with open("/tmp/one-name", "w+b") as file:
        file.write(b"linked")
        file.flush()
        os.link("/tmp/one-name", "/tmp/other-name")
        os.unlink("/tmp/one-name")
        yield
        file.write(b"!")
        file.flush()
        assert Path("/tmp/other-name").read_bytes() == b"linked!"
        assert not [name for name in os.listdir("/tmp") if "one-name" in name or "link_remap" in name]


def positions() -> Iterator[None]:
    """O_APPEND stays set; each open file description has its own position, which a duplicate shares."""
    Path("/tmp/log").write_bytes(b"0123456789")
    append = os.open("/tmp/log", os.O_WRONLY | os.O_APPEND)
    reader, own = os.open("/tmp/log", os.O_RDONLY), os.open("/tmp/log", os.O_RDONLY)
    shared = os.dup(reader)
    os.lseek(reader, 4, os.SEEK_SET)
    os.set_inheritable(shared, True)
    yield
    Path("/tmp/log").write_bytes(b"0123456789ab")  # another writer
    os.write(append, b"end")
    assert Path("/tmp/log").read_bytes() == b"0123456789abend"
    assert fcntl.fcntl(append, fcntl.F_GETFL) & os.O_APPEND
    assert os.read(reader, 2) == b"45"
    assert os.read(shared, 2) == b"67"
    assert os.read(own, 2) == b"01"
    assert os.get_inheritable(shared)
    assert not os.get_inheritable(reader)


def deleted_directory() -> Iterator[None]:
    """The current directory of the process was removed."""
    os.mkdir("/tmp/standing")
    os.chdir("/tmp/standing")
    os.rmdir("/tmp/standing")
    yield
    assert os.listdir(".") == []
    assert not os.path.exists("/tmp/standing")


def pipe_with_data() -> Iterator[None]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    sent = 0
    while True:  # until the pipe is full
        try:
            sent += os.write(writer, bytes(range(256)) * 16)
        except BlockingIOError:
            break
    yield
    got = bytearray()
    while len(got) < sent:
        got += os.read(reader, 1 << 20)
    assert sent >= 65536
    assert got == bytes(range(256)) * (sent // 256)
    os.write(writer, b"more")
    assert os.read(reader, 10) == b"more"


def fifo_with_data() -> Iterator[None]:
    os.mkfifo("/tmp/fifo")
    end = os.open("/tmp/fifo", os.O_RDWR)
    os.write(end, b"queued")
    yield
    with open("/tmp/fifo", "wb", buffering=0) as other:
        other.write(b" and new")
    assert os.read(end, 100) == b"queued and new"


def unix_sockets() -> Iterator[None]:
    """A connected pair with unread data, and a listener with a node in the file system."""
    left, right = socket.socketpair()
    packets_in, packets_out = socket.socketpair(type=socket.SOCK_SEQPACKET)
    left.sendall(b"under way")
    packets_in.send(b"one")
    packets_in.send(b"two")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/tmp/listener")
    listener.listen()
    connected = socket.socket(socket.AF_UNIX)
    connected.connect("/tmp/listener")
    accepted, _ = listener.accept()
    connected.sendall(b"hello")
    yield
    assert right.recv(100) == b"under way"
    right.sendall(b"answer")
    assert left.recv(100) == b"answer"
    assert [packets_out.recv(100), packets_out.recv(100)] == [b"one", b"two"]
    assert accepted.recv(100) == b"hello"
    assert stat.S_ISSOCK(os.stat("/tmp/listener").st_mode)
    late = socket.socket(socket.AF_UNIX)
    late.connect("/tmp/listener")
    late.sendall(b"late")
    assert listener.accept()[0].recv(100) == b"late"


def shared_mapping() -> Iterator[None]:
    """What is written through the mapping is in the file, before the checkpoint and after it."""
    Path("/tmp/mapped").write_bytes(bytes(8192))
    with open("/tmp/mapped", "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 8192)
    mapping[5000:5006] = b"before"
    child = os.fork()
    if child == 0:
        while mapping[0] != 1:  # the parent writes it through the same mapping
            select.select([], [], [], 0.01)
        mapping[1] = 2
        os._exit(0)
    yield
    assert mapping[5000:5006] == b"before"
    mapping[6000:6005] = b"after"
    assert Path("/tmp/mapped").read_bytes()[6000:6005] == b"after"
    mapping[0] = 1
    assert os.waitpid(child, 0)[1] == 0
    assert mapping[1] == 2


def mapping_of_base_file() -> Iterator[None]:
    with open(BASE_FILE, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    private[0:4] = b"mine"
    yield
    assert mapping[:] == BASE_TEXT
    assert private[:] == b"mine" + BASE_TEXT[4:]
    assert BASE_FILE.read_bytes() == BASE_TEXT


def shared_memory() -> Iterator[None]:
    with open("/dev/shm/shared", "w+b") as file:
        file.truncate(4096)
        mapping = mmap.mmap(file.fileno(), 4096)
    mapping[:5] = b"posix"
    os.unlink("/dev/shm/shared")
    anonymous = mmap.mmap(-1, 4096)
    anonymous[:4] = b"anon"
    memory_file = os.memfd_create("memory")
    os.write(memory_file, b"memfd")
    yield
    assert mapping[:5] == b"posix"
    assert anonymous[:4] == b"anon"
    assert os.pread(memory_file, 10, 0) == b"memfd"


def file_locks() -> Iterator[None]:
    """Whole-file, region and shared locks keep others out: a child, which holds none of them, tries to take them."""
    whole, region, shared = (os.open(f"/tmp/{name}", os.O_RDWR | os.O_CREAT) for name in LOCK_FILES)
    fcntl.flock(whole, fcntl.LOCK_EX)
    fcntl.lockf(region, fcntl.LOCK_EX, 10, 5)
    fcntl.lockf(shared, fcntl.LOCK_SH)
    yield
    child = os.fork()
    if child == 0:
        os._exit(0 if _locks_keep_out() else 1)
    assert os.waitpid(child, 0)[1] == 0, "a lock was lost"
    fcntl.flock(whole, fcntl.LOCK_UN)
    fcntl.flock(os.open(f"/tmp/{LOCK_FILES[0]}", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _locks_keep_out() -> bool:
    whole, region, shared = (os.open(f"/tmp/{name}", os.O_RDWR) for name in LOCK_FILES)
    exclusive = fcntl.LOCK_EX | fcntl.LOCK_NB
    fcntl.lockf(region, exclusive, 10, 100)  # next to the locked bytes
    fcntl.lockf(shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return all(
        _is_refused(attempt)
        for attempt in (
            lambda: fcntl.flock(whole, exclusive),
            lambda: fcntl.lockf(region, exclusive, 1, 6),
            lambda: fcntl.lockf(shared, exclusive),
        )
    )


def _is_refused(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except BlockingIOError:
        return True
    return False


if __name__ == "__main__":
    run(
        deleted_file,
        big_deleted_file,
        deleted_base_file,
        replaced_file,
        renamed_file,
        deleted_name_of_linked_file,
        positions,
        deleted_directory,
        pipe_with_data,
        fifo_with_data,
        unix_sockets,
        shared_mapping,
        mapping_of_base_file,
        shared_memory,
        file_locks,
    )
