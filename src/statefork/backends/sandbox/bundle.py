"""The description of a sandbox as the OCI runtime specification wants it: a directory with a ``config.json``."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statefork.backends.containers.run_arguments import Volume
from statefork.backends.sandbox.runsc import INIT_PATH

__all__ = ["write_bundle"]

CONTROL_DIRECTORY = os.path.dirname(INIT_PATH)

# As a container of Docker has.
_CAPABILITIES = [
    f"CAP_{name}"
    for name in "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL"
    " AUDIT_WRITE".split()
]


def write_bundle(
    bundle: Path,
    *,
    rootfs: Path,
    init: Path,
    env: Mapping[str, str],
    volumes: Sequence[Volume],
) -> None:
    """Describe a sandbox whose first process is our init on a root file system that is only read.

    The directory of init's socket and FIFOs is in the sandbox's memory; init itself is a file of the host.
    """
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "hostname": "statefork",
        "root": {"path": os.fspath(rootfs), "readonly": False},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [INIT_PATH, "init", "--dir", CONTROL_DIRECTORY, "--any-peer", "--hold-prompt"],
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": CONTROL_DIRECTORY, "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            _bind(init, INIT_PATH, read_only=True),
            *(_bind(volume.source, volume.target, read_only=volume.is_read_only) for volume in volumes),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_text(json.dumps(config))


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    options = ["rbind", "ro" if read_only else "rw"]
    return {"destination": target, "type": "bind", "source": os.fspath(source), "options": options}
