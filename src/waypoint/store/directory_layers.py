"""Layers as plain directories, for hosts without btrfs and loop devices: capture is a copy.

The copy shares extents where the file system can (``FICLONE``); elsewhere its cost grows with the files
that the branch has written, and so does the pause.
"""

import os
from pathlib import Path

from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.syscalls import sync_file_system

__all__ = ["OverlayLayers"]

COPY_TIMEOUT_S = 3600.0


class OverlayLayers:
    """Implements :class:`waypoint.store.layers.LayerDriver`."""

    name = "overlay"

    def create(self, layer: Path, numbers: Path | None = None) -> None:
        (layer / "upper").mkdir(parents=True, mode=0o755)
        (layer / "work").mkdir(mode=0o755)

    def reserve_inode_numbers(self, tree: Path, numbers: Path) -> None:
        """Nothing to do: all are directories of one file system, which numbers its files."""

    def capture(self, layer: Path, target: Path) -> None:
        # The work directory belongs to the mounted overlay; a restored branch gets a new one.
        target.mkdir()
        for entry in sorted(layer.iterdir()):
            if entry.name != "work":
                self._copy(entry, target / entry.name)
        (target / "work").mkdir(mode=0o755)

    def materialize(self, saved: Path, layer: Path) -> None:
        self._copy(saved, layer)

    def delete(self, layer: Path) -> None:
        # Not shutil.rmtree, which recurses: an agent may nest directories deeper than Python's stack.
        run_tool(("rm", "-rf", "--", os.fspath(layer)), timeout_s=COPY_TIMEOUT_S)

    def flush(self, layer: Path) -> None:
        sync_file_system(layer)

    def _copy(self, source: Path, target: Path) -> None:
        # cp keeps what makes an upper directory one: whiteouts (device 0:0) and trusted.overlay.* attributes.
        # cp ends with us: a killed caller must not leave one that still copies while recovery removes its files.
        command = (
            "setpriv",
            "--pdeathsig",
            "KILL",
            "cp",
            "-a",
            "--reflink=auto",
            "-T",
            os.fspath(source),
            os.fspath(target),
        )
        run_tool(command, timeout_s=COPY_TIMEOUT_S)
