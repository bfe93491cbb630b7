"""Build hook: compile the static C init and ship it inside the package as ``waypoint/_bin/waypoint-init``.

Runs for wheels and for editable installs alike; in both the program is put under ``src`` (ignored by git),
where an editable install finds it and from where a wheel takes it.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAM = "waypoint-init"


class InitBuildHook(BuildHookInterface[Any]):
    """Compile ``native/init`` before the files of the package are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build and install the program. A failing compiler stops the installation with its own output."""
        if self.target_name != "wheel":
            return  # a source distribution carries the C files, not what they compile to
        root = Path(self.root)
        build = root / "build" / "init"
        build.mkdir(parents=True, exist_ok=True)
        subprocess.run(["make", "-C", str(root / "native" / "init"), f"BUILD={build}"], check=True)
        place = root / "src" / "waypoint" / "_bin"
        place.mkdir(exist_ok=True)
        # Renamed into place: a running session may be executing the old one.
        fresh = place / f".{PROGRAM}.new"
        shutil.copy2(build / PROGRAM, fresh)
        fresh.chmod(0o755)
        os.replace(fresh, place / PROGRAM)
        # The program is for one architecture but for any Python 3.
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{machine}"
