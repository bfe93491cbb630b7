"""Device numbers in the memory of saved processes, which a restore replaces by those of the new branch.

A process that has remembered the device number of a file, and compares it with what the kernel says after a restore,
takes the file for another one. SQLite does, and loses committed rows. So the places are found after a dump
(native/init/relocations.c) and kept with the images, like the relocations of a linker.
"""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from waypoint.kernel.criu.handed_over import Output
from waypoint.kernel.criu.program import Criu
from waypoint.kernel.processes.programs import run_tool

__all__ = ["FILES_SEEN", "Relocations", "keep_relocations"]

FILES_SEEN = "WAYPOINT_FILES_SEEN"  # native/preload/files_seen.c
SEARCH_TIMEOUT_S = 600.0  # of hundreds of gigabytes
_FILE = "relocations.json"
_NUMBER = struct.Struct("=Q")


def keep_relocations(criu: Criu, images: Path, devices: Mapping[str, int], seen: Output) -> None:
    """Find and keep the places in the images where the numbers of ``devices`` are remembered; CRIU has ended.

    The devices have names, by which a restore knows them again. ``seen`` are the files that processes have.
    """
    command = (os.fspath(criu.launcher), "relocations", os.fspath(images), *map(str, devices.values()))
    with seen.opened() as files:
        found = run_tool(command, timeout_s=SEARCH_TIMEOUT_S, stdin=files)
    names = {str(device): name for name, device in devices.items()}
    places: dict[str, dict[str, list[int]]] = {}
    for line in found.stdout.splitlines():
        pid, device, address = line.split()
        places.setdefault(names[device], {}).setdefault(pid, []).append(int(address, 16))
    if places:
        old = {name: devices[name] for name in places}
        (images / _FILE).write_text(json.dumps({"devices": old, "places": places}))


class Relocations:
    """The places where restored processes have remembered device numbers."""

    def __init__(self, images: Path) -> None:
        kept = images / _FILE
        self._kept = json.loads(kept.read_bytes()) if kept.exists() else {"places": {}}

    def apply(self, outside: Mapping[int, int], devices: Mapping[str, int]) -> None:
        """Write the numbers that the ``devices`` have now. No process has run yet; ``outside`` are their pids for us."""
        for name, processes in self._kept["places"].items():
            old, new = _NUMBER.pack(self._kept["devices"][name]), _NUMBER.pack(devices[name])
            for pid, addresses in processes.items():
                with open(f"/proc/{outside[int(pid)]}/mem", "r+b", buffering=0) as memory:
                    for address in addresses:
                        if os.pread(memory.fileno(), _NUMBER.size, address) == old:
                            os.pwrite(memory.fileno(), new, address)
