"""Build hook: compile the C parts and ship them inside the package, in ``waypoint/_bin``.

Runs for wheels and for editable installs alike; in both they are put below ``src`` (ignored by git),
where an editable install finds them and from where a wheel takes them.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What is compiled, and from which directory of ``native``.
MADE = {"waypoint-init": "init", "criu-preload.so": "preload"}


class NativeBuildHook(BuildHookInterface[Any]):
    """Compile ``native`` before the files of the package are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build and install all of it. A failing compiler stops the installation with its own output."""
        if self.target_name != "wheel":
            return  # a source distribution carries the C files, not what they compile to
        root = Path(self.root)
        target = root / "src" / "waypoint" / "_bin"
        target.mkdir(exist_ok=True)
        for name, source in MADE.items():
            build = root / "build" / source
            build.mkdir(parents=True, exist_ok=True)
            subprocess.run(["make", "-C", str(root / "native" / source), f"BUILD={build}"], check=True)
            # Renamed into place: a running session may be executing the old one.
            fresh = target / f".{name}.new"
            shutil.copy2(build / name, fresh)
            fresh.chmod(0o755)
            os.replace(fresh, target / name)
        # They are for one architecture but for any Python 3.
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{machine}"
