"""The command line of a container engine, docker or podman: run it, and report in its own words why it failed.

Read next: :mod:`statefork.backends.processes.client_commands`, by which commands in containers are run and ended.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from statefork.backend import Command, CommandResult
from statefork.backends.processes.client_commands import (
    KILL_TIMEOUT_S,
    kill_words,
    reporting_pid,
    run_through_client,
)
from statefork.errors import BackendFailed, BackendUnavailable
from waypoint.errors import ToolMissing, ToolTimedOut
from waypoint.kernel.processes.programs import DEVNULL, Finished, Popen, run_tool, spawn

__all__ = ["ContainerFacts", "Engine", "callers_environment"]

TIMEOUT_S = 600.0  # commit, checkpoint and export write as much as the container holds
BUILD_TIMEOUT_S = 4 * 3600.0
REASON_LINES = 6

_GONE = ("no such container", "no such image", "no such object", "image not known", "no container with")

_PASSED = ("PATH", "HOME", "TMPDIR", "SSH_AUTH_SOCK")
_PASSED_PREFIXES = (
    "DOCKER_",
    "CONTAINERS_",
    "CONTAINER_HOST",
    "STORAGE_",
    "XDG_",
    "BUILDKIT_",
    "REGISTRY_AUTH_",
)


def callers_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables that configure an engine; its language is ours, since we read its messages."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.lower().endswith("_proxy")
    }
    return {**kept, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """A container as the engine describes it; ``pid`` is that of its first process on the host, 0 if it has ended."""

    id: str
    is_running: bool
    pid: int
    exit_code: int


class Engine(ABC):
    """One engine, reached in one way: ``command`` with its general options, in ``env``.

    Failures are reported in the name of ``backend``.
    """

    name: str
    package: str

    def __init__(self, backend: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.backend = backend
        self._command = tuple(command)
        self._env = dict(env)

    # -- what the engines do differently

    @abstractmethod
    def build(self, image: str, directory: str) -> None:
        """Make an image from a directory with a Dockerfile."""

    @abstractmethod
    def launch(self, verb: str, *words: str) -> None:
        """Make a container: ``run`` or ``create`` it."""

    @abstractmethod
    def commit(self, container: str, image: str) -> None: ...

    @abstractmethod
    def added_bytes(self, image: str) -> int:
        """What the uppermost layer of an image takes."""

    @abstractmethod
    def remove_container(self, container: str) -> None:
        """Remove it, running or not, with its anonymous volumes; it may have been removed already."""

    def remove_image(self, image: str) -> None:
        self.remove("rmi", "rmi", image)

    # -- the engine itself

    def ask(
        self, operation: str, *words: str, timeout_s: float = TIMEOUT_S, env: Mapping[str, str] | None = None
    ) -> str:
        """Run the engine to its end and return what it printed. Raises BackendFailed with its own reason."""
        done = self._run(operation, words, timeout_s, env)
        if done.status != 0:
            raise BackendFailed(self.backend, operation, reason_of(done))
        return done.stdout.strip()

    def remove(self, operation: str, *words: str) -> None:
        """As :meth:`ask`, for what may have been removed already."""
        done = self._run(operation, words, TIMEOUT_S)
        if done.status != 0 and not any(word in done.stderr.lower() for word in _GONE):
            raise BackendFailed(self.backend, operation, reason_of(done))

    def find(self, container: str) -> ContainerFacts | None:
        """What the engine knows of a container; None if it knows no container of that name."""
        described = self.describe(container)
        if described is None:
            return None
        state = described["State"]
        return ContainerFacts(
            id=described["Id"],
            is_running=bool(state["Running"]),
            pid=int(state["Pid"]),
            exit_code=int(state["ExitCode"]),
        )

    def describe(self, container: str) -> dict[str, Any] | None:
        """All that the engine knows of a container; None if it knows no container of that name."""
        done = self._run("inspect", ("container", "inspect", container), TIMEOUT_S)
        if done.status == 0:
            [described] = json.loads(done.stdout)
            assert isinstance(described, dict)
            return described
        if any(word in done.stderr.lower() for word in _GONE):
            return None
        raise BackendFailed(self.backend, "inspect", reason_of(done))

    def settings_of(self, container: str) -> dict[str, Any]:
        """The variables, working directory and command that a container was made with."""
        return (self.describe(container) or {}).get("Config") or {}

    def published_ports(self, container: str) -> list[str]:
        """The ports that a container publishes, as it knows them: ``80/tcp``."""
        host = (self.describe(container) or {}).get("HostConfig") or {}
        return list(host.get("PortBindings") or {})

    def _run(
        self,
        operation: str,
        words: Sequence[str],
        timeout_s: float,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        try:
            return run_tool(
                (*self._command, *words),
                timeout_s=timeout_s,
                env={**self._env, **(env or {})},
                accept=range(-64, 256),
            )
        except ToolMissing as error:
            raise self._missing() from error
        except ToolTimedOut as error:
            reason = f"{self.name} did not end within {timeout_s:g} s"
            raise BackendFailed(self.backend, operation, reason) from error
        except (
            OSError,
            ValueError,
        ) as error:  # words that no program can be given: too long, or with a zero byte
            raise BackendFailed(self.backend, operation, str(error)) from error

    def _missing(self) -> BackendUnavailable:
        return BackendUnavailable(
            self.backend, f"no program {self.name!r}", remedy=f"apt-get install {self.package}"
        )

    # -- commands in containers

    def execute(self, container: str, command: Command, timeout_s: float | None) -> CommandResult:
        """Run a command in a shell of its own. Raises CommandTimedOut when it was ended, BackendFailed if it never began."""
        result = run_through_client(
            partial(self._start_client, container, reporting_pid(command)),
            lambda pid: self.ask("kill", "exec", container, *kill_words(pid), timeout_s=KILL_TIMEOUT_S),
            timeout_s,
        )
        if not result.has_begun:
            reason = _last_lines(result.errors) or f"{self.name} ended with {result.status}"
            raise BackendFailed(self.backend, "exec", reason)
        return CommandResult(exit_code=result.status, output=result.output, errors=result.errors)

    def pipe(
        self, container: str, words: Sequence[str], stdin: IO[bytes] | None, stdout: IO[bytes]
    ) -> tuple[int, str]:
        """Run a program as root in a container, between two files; returns its exit status and its error messages."""
        try:
            done = run_tool(
                (*self._command, "exec", "-i", "-u", "0", container, *words),
                timeout_s=TIMEOUT_S,
                env=self._env,
                accept=range(-64, 256),
                stdin=DEVNULL if stdin is None else stdin,
                stdout=stdout,
            )
        except ToolMissing as error:
            raise self._missing() from error
        return done.status, _last_lines(done.stderr)

    def _start_client(
        self, container: str, words: Sequence[str], out: IO[bytes], err: IO[bytes]
    ) -> "Popen[bytes]":
        try:
            return spawn((*self._command, "exec", container, *words), stdout=out, stderr=err, env=self._env)
        except ToolMissing as error:
            raise self._missing() from error
        except (OSError, ValueError) as error:
            raise BackendFailed(self.backend, "exec", str(error)) from error


def reason_of(done: Finished) -> str:
    """The last words of a program that failed; builders print the failing step's own words to standard output."""
    said = _last_lines(done.stderr)
    steps = _last_lines(done.stdout)
    return "\n".join(part for part in (steps, said) if part) or f"exit status {done.status}"


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(_CHATTER)]
    return "\n".join(lines[-REASON_LINES:])


_CHATTER = (
    "DEPRECATED: The legacy builder",
    "            Install the buildx",
    "            https://docs.docker.com",
)
