"""A Docker daemon for one run only: on a socket of its own, with data of its own, without a network."""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statefork.backends.processes.criu_program import find_usable_criu, make_criu_program
from statefork.errors import BackendFailed, BackendUnavailable
from waypoint.errors import ToolFailed, ToolMissing, ToolTimedOut
from waypoint.kernel.cgroup.group import remove_group
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool, spawn
from waypoint.kernel.storage.mounts import read_mounts

__all__ = ["docker_daemon"]

READY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0


@contextmanager
def docker_daemon(directory: Path) -> Iterator[str]:
    """The daemon's address for DOCKER_HOST. When the block ends, so do the daemon and the containerd it has started.

    Its data are below ``directory``. It can checkpoint if there is a CRIU that works.
    """
    if shutil.which("dockerd", path=CLEAN_ENV["PATH"]) is None:
        raise BackendUnavailable("docker", "no program 'dockerd'", remedy="apt-get install docker.io")
    name = f"statefork-docker-{secrets.token_hex(4)}"
    data, runtime = directory / name, Path("/run") / name
    data.mkdir()
    runtime.mkdir()
    host = f"unix://{runtime}/socket"
    criu = find_usable_criu()
    programs = "" if criu is None else f"{make_criu_program(data / 'criu', criu)}:"
    (data / "daemon.json").write_text(
        json.dumps(
            {
                "experimental": True,  # for checkpoints
                "data-root": f"{data}/data",
                "exec-root": f"{runtime}/exec",
                "pidfile": f"{runtime}/pid",
                "hosts": [host],
                "cgroup-parent": f"/{name}",
                "bridge": "none",
                **dict.fromkeys(("iptables", "ip6tables", "ip-forward", "ip-masq"), False),
            }
        )
    )
    scratch = data / "tmp"  # containerd leaves an empty directory there at each checkpoint
    scratch.mkdir(mode=0o700)
    env = {**CLEAN_ENV, "PATH": f"{programs}{CLEAN_ENV['PATH']}", "TMPDIR": f"{scratch}"}
    with open(data / "log", "wb") as log:
        # In a mount namespace of its own: else its mounts would be shared with all others of the host.
        command = ["unshare", "--mount", "--propagation", "private", "dockerd", "--config-file"]
        daemon = spawn([*command, f"{data}/daemon.json"], stdout=log, stderr=log, env=env)
    try:
        _wait_until_ready(host, data / "log")
        yield host
    finally:
        daemon.terminate()
        daemon.wait(END_TIMEOUT_S)
        for mount in read_mounts():
            if mount.fstype in ("cgroup", "cgroup2"):
                remove_group(Path(mount.path) / name)
        shutil.rmtree(data)
        shutil.rmtree(runtime)


def _wait_until_ready(host: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            run_tool(["docker", "version"], timeout_s=20.0, env={**os.environ, "DOCKER_HOST": host})
            return
        except ToolMissing as error:
            raise BackendUnavailable("docker", str(error), remedy="apt-get install docker.io") from error
        except (ToolFailed, ToolTimedOut) as error:
            if time.monotonic() > deadline:
                said = log.read_text(errors="replace").splitlines()[-5:]
                raise BackendFailed("docker", "start of a daemon", "\n".join(said)) from error
        time.sleep(0.1)
