"""What the pool's loop file and mount options cost: the numbers behind docs/adr/0002-pool-loop-file.md.

Makes one sparse file with btrfs for each variant, all mounted at once, and measures them in turn, round by
round, so that a slow minute of the machine hits every variant alike. Needs root and ~20 GB of free space;
everything it makes is removed at the end.

    python -m benchmarks.pool_options --dir /var/tmp/pool-options --rounds 30 --bulk-rounds 5
"""

import argparse
import ctypes
import fcntl
import os
import shutil
import statistics
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.storage.loop import attached_loop

SUBVOL_CREATE = 0x5000940E
SNAP_DESTROY = 0x5000940F
SNAP_CREATE_V2 = 0x50009417
SUBVOL_RDONLY = 2

GIB = 1 << 30
CHUNK = os.urandom(1 << 20)  # one random MiB: nothing for the compressor to gain, as with real binaries
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to make the pool."""

    name: str
    direct_io: bool = True
    options: str = "noatime"
    mkfs: tuple[str, ...] = ("-m", "single", "-d", "single")
    preallocate: bool = False


VARIANTS = (
    Variant(name="buffered loop", direct_io=False),
    Variant(name="direct loop"),
    Variant(name="direct, relatime", options=""),
    Variant(name="direct, metadata dup", mkfs=("-m", "dup", "-d", "single")),
    Variant(name="direct, nodesize 4k", mkfs=("-m", "single", "-d", "single", "--nodesize", "4k")),
    Variant(name="direct, preallocated", preallocate=True),
    Variant(name="direct, nodiscard", options="noatime,nodiscard"),
    Variant(name="direct, zstd:1", options="noatime,compress=zstd:1"),
    Variant(name="direct, commit=300", options="noatime,commit=300"),
    Variant(name="direct, nodatasum", options="noatime,nodatasum"),
    Variant(name="direct, nobarrier", options="noatime,nobarrier"),
    Variant(name="buffered, nobarrier", direct_io=False, options="noatime,nobarrier"),
)


def subvolume(parent: Path, name: str) -> None:
    ioctl_in(parent, SUBVOL_CREATE, struct.pack("=q4088s", 0, name.encode()))


def snapshot(source: Path, parent: Path, name: str) -> None:
    source_fd = os.open(source, os.O_RDONLY)
    try:
        args = struct.pack("=qQQ32x4040s", source_fd, 0, SUBVOL_RDONLY, name.encode())
        ioctl_in(parent, SNAP_CREATE_V2, args)
    finally:
        os.close(source_fd)


def delete(parent: Path, name: str) -> None:
    ioctl_in(parent, SNAP_DESTROY, struct.pack("=q4088s", 0, name.encode()))


def ioctl_in(directory: Path, request: int, args: bytes) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, request, bytearray(args))  # immutable arguments may not exceed 1024 bytes
    finally:
        os.close(fd)


def syncfs(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        if LIBC.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", path)
    finally:
        os.close(fd)


def touch_ten(directory: Path, salt: int) -> None:
    for number in range(10):
        (directory / f"small{number}").write_bytes(f"{salt}:{number}".encode() * 300)


def write_big(path: Path, mebibytes: int) -> None:
    with path.open("wb", buffering=0) as stream:
        for _ in range(mebibytes):
            stream.write(CHUNK)


def timed_ms(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


class Bench:
    """One variant, mounted."""

    def __init__(self, variant: Variant, root: Path) -> None:
        self.variant = variant
        self.root = root
        self.live = root / "live"
        self.times: dict[str, list[float]] = defaultdict(list)
        self.count = 0
        subvolume(root, "live")
        touch_ten(self.live, -1)
        syncfs(root)

    def measure_small(self) -> None:
        """(a) ten changed files, (b) the same after syncfs, (e) delete."""
        self.count += 1
        touch_ten(self.live, self.count)
        self._timed("a: changed, snapshot", lambda: snapshot(self.live, self.root, "snap-a"))
        touch_ten(self.live, self.count + 100000)
        self._timed("b: changed, syncfs", lambda: syncfs(self.root))
        self._timed("b: then snapshot", lambda: snapshot(self.live, self.root, "snap-b"))
        self._timed("e: delete", lambda: delete(self.root, "snap-a"))
        delete(self.root, "snap-b")

    def measure_bulk(self) -> None:
        """(c) 500 MB, syncfs, snapshot; (d) write 1 GB and syncfs."""
        big = self.live / "big"
        write_big(big, 500)
        self._timed("c: 500 MB, syncfs", lambda: syncfs(self.root))
        self._timed("c: then snapshot", lambda: snapshot(self.live, self.root, "snap-c"))
        self._timed("c: delete", lambda: delete(self.root, "snap-c"))
        big.unlink()
        syncfs(self.root)
        self._timed("d: 1 GB + syncfs", lambda: self._write_out(big))
        big.unlink()
        syncfs(self.root)

    def measure_history(self, counts: tuple[int, ...], rounds: int) -> None:
        """How the snapshot's cost grows with the number of snapshots that exist."""
        made = 0
        for count in counts:
            while made < count:
                touch_ten(self.live, made)
                snapshot(self.live, self.root, f"old-{made}")
                made += 1
            for turn in range(rounds):
                touch_ten(self.live, 10**6 + turn)
                label = f"history {count}"
                self._timed(label, lambda: snapshot(self.live, self.root, "snap-h"))
                self._timed(f"{label}, delete", lambda: delete(self.root, "snap-h"))

    def _write_out(self, path: Path) -> None:
        write_big(path, 1000)
        syncfs(self.root)

    def _timed(self, label: str, action: Callable[[], None]) -> None:
        self.times[label].append(timed_ms(action))


def mounted(stack: ExitStack, variant: Variant, directory: Path, size_bytes: int) -> Path:
    directory.mkdir(parents=True)
    image, target = directory / "pool.img", directory / "mnt"
    target.mkdir()
    with image.open("wb") as stream:
        stream.truncate(size_bytes)
        if variant.preallocate:
            os.posix_fallocate(stream.fileno(), 0, 6 * GIB)
    run_tool(["mkfs.btrfs", "-q", "-K", *variant.mkfs, str(image)], timeout_s=60)
    with attached_loop(image, direct_io=variant.direct_io) as device:
        options = ["-o", variant.options] if variant.options else []
        run_tool(["mount", "-t", "btrfs", *options, str(device), str(target)], timeout_s=60)
    stack.callback(run_tool, ["umount", str(target)], timeout_s=120)
    return target


def report(benches: list[Bench]) -> None:
    labels = list(dict.fromkeys(label for bench in benches for label in bench.times))
    print(f"{'median ms (p90)':24}" + "".join(f"{label:>22}" for label in labels))
    for bench in benches:
        cells = []
        for label in labels:
            values = sorted(bench.times[label])
            if not values:
                cells.append(f"{'-':>22}")
                continue
            p90 = values[min(len(values) - 1, int(len(values) * 0.9))]
            cells.append(f"{f'{statistics.median(values):.2f} ({p90:.2f})':>22}")
        print(f"{bench.variant.name:24}" + "".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp/pool-options"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--bulk-rounds", type=int, default=5)
    parser.add_argument("--history", default="0,100,1000", help="counts of existing snapshots, or ''")
    parser.add_argument("--only", default="", help="variants whose name contains this")
    args = parser.parse_args()
    chosen = [variant for variant in VARIANTS if args.only in variant.name]
    try:
        with ExitStack() as stack:
            benches = [
                Bench(variant, mounted(stack, variant, args.dir / str(number), 16 * GIB))
                for number, variant in enumerate(chosen)
            ]
            for _ in range(args.rounds):
                for bench in benches:
                    bench.measure_small()
            report(benches)
            for _ in range(args.bulk_rounds):
                for bench in benches:
                    bench.measure_bulk()
            report(benches)
            if args.history:
                counts = tuple(int(count) for count in args.history.split(","))
                for bench in benches[:2]:
                    bench.measure_history(counts, args.rounds)
                report(benches[:2])
    finally:
        shutil.rmtree(args.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
