"""Docker and podman as their users call them, without StateFork."""

import os
from pathlib import Path

from statefork.backends.containers.engine import callers_environment
from statefork.backends.containers.podman_engine import PodmanEngine
from waypoint.kernel.processes.programs import run_tool

__all__ = ["docker", "podman"]


def docker(*words: str) -> str:
    done = run_tool(["docker", *words], timeout_s=300.0, env=callers_environment(os.environ))
    return done.stdout.strip()


def podman(storage: Path, *words: str) -> str:
    engine = PodmanEngine.of("podman", str(storage))
    if words[0] == "run":
        engine.launch(*words)
        return ""
    return engine.ask("test", *words)
