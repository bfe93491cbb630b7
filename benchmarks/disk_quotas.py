"""What each sort of quota costs the pool: the numbers behind docs/adr/0009-disk-limit-by-simple-quotas.md.

Makes one btrfs for each sort, all mounted at once, with a layer of 1.2 GB in 20 000 files, and does with each in turn
the rounds of a session: write, flush, snapshot; every fifth round a checkpoint is restored and the restored layer
deleted. Needs root and 15 GB of free space; everything it makes is removed at the end.

    python -m benchmarks.disk_quotas --dir /var/tmp/disk-quotas --rounds 100
"""

import argparse
import fcntl
import os
import random
import shutil
import statistics
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from waypoint.kernel.storage.loop import attached_loop
from waypoint.kernel.storage.pool_filesystem import make_btrfs, make_sparse_file
from waypoint.kernel.storage.subvolumes import create_subvolume, delete_subvolume, snapshot_subvolume
from waypoint.kernel.syscalls import MS_NOATIME, mount, sync_file_system, unmount

QUOTA_CTL = 0xC0109428
SORTS = {"off": None, "quota groups": 1, "simple quotas": 4}
SIZE = 10 << 30
BLOB = os.urandom(1 << 20)
DIRECTORIES, FILES, LARGE_FILES = 200, 100, 64


class Layer:
    """A layer in a pool of its own, and how long each step on it has taken."""

    def __init__(self, pool: Path) -> None:
        self.pool = pool
        self.path = pool / "layer"
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self._random = random.Random(1)

    def fill(self) -> None:
        create_subvolume(self.path)
        for number in range(DIRECTORIES):
            (self.path / str(number)).mkdir()
            for file in range(FILES):
                self._write_small(number, file)
        for number in range(LARGE_FILES):
            (self.path / f"large-{number}").write_bytes(BLOB * 16)
        sync_file_system(self.pool)

    def round(self, number: int) -> None:
        self._timed("write", self._change)
        self._timed("flush", lambda: sync_file_system(self.path))
        saved = self.pool / f"saved-{number}"
        self._timed("snapshot", lambda: snapshot_subvolume(self.path, saved, read_only=True))
        if number % 5 == 4:
            live = self.pool / f"live-{number}"
            source = self.pool / f"saved-{number // 2}"
            self._timed("restore", lambda: snapshot_subvolume(source, live, read_only=False))
            (live / "note").write_text("written")
            self._timed("delete", lambda: delete_subvolume(live))

    def _change(self) -> None:
        for _ in range(100):
            self._write_small(self._random.randrange(DIRECTORIES), self._random.randrange(FILES))
        for _ in range(4):
            with open(self.path / f"large-{self._random.randrange(LARGE_FILES)}", "r+b") as out:
                for _ in range(16):
                    out.seek(self._random.randrange(15 << 20))
                    out.write(BLOB[: 64 << 10])

    def _write_small(self, directory: int, file: int) -> None:
        content = BLOB[: self._random.randrange(200, 16000)]
        (self.path / str(directory) / str(file)).write_bytes(content)

    def _timed(self, step: str, action: Callable[[], None]) -> None:
        began = time.perf_counter()
        action()
        self.times[step].append((time.perf_counter() - began) * 1000)


def _make(directory: Path, sort: str, undo: ExitStack) -> Layer:
    image, pool = directory / f"{sort}.img", directory / sort
    pool.mkdir()
    make_sparse_file(image, SIZE)
    make_btrfs(image, "disk-quotas")
    with attached_loop(image, direct_io=True) as device:
        mount(os.fspath(device), pool, "btrfs", MS_NOATIME, "discard=async")
    undo.callback(unmount, pool)
    command = SORTS[sort]
    if command is not None:
        fd = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, QUOTA_CTL, bytearray(struct.pack("=QQ", command, 0)))
        finally:
            os.close(fd)
    layer = Layer(pool)
    layer.fill()
    return layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    options.dir.mkdir()
    try:
        with ExitStack() as undo:
            layers = {sort: _make(options.dir, sort, undo) for sort in SORTS}
            for number in range(options.rounds):
                for layer in layers.values():
                    layer.round(number)
            for sort, layer in layers.items():
                figures = (
                    f"{step} {statistics.median(times):.1f} ({max(times):.0f})"
                    for step, times in layer.times.items()
                )
                print(f"{sort}, median (worst) in ms: {', '.join(figures)}", flush=True)
    finally:
        shutil.rmtree(options.dir)


if __name__ == "__main__":
    main()
