"""From the name of a method to a manager: ``create_env_manager(method="waypoint_build", dockerfile_dir=…)``."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from statefork import published_managers
from statefork.backend import Backend
from statefork.branches import MAIN
from statefork.deciders import Decider
from statefork.environment import Environment
from statefork.errors import MissingOption, StateForkError, UnknownMethod, WrongUse
from statefork.manager import EnvironmentManager, ForkableEnvironmentManager
from statefork.record import (
    EnvironmentDirectory,
    EnvironmentRecord,
    default_state_dir,
    directories,
    read_record,
)

__all__ = [
    "ALWAYS_TAKEN",
    "METHODS",
    "Method",
    "backend_class",
    "create_env_manager",
    "open_env_manager",
    "option_defaults",
    "option_names",
]


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Method:
    """A way to get an environment: a backend, and whether it is made (build) or taken over (attach)."""

    backend: str
    module: str
    attaches: bool = False
    required: tuple[str, ...] = ()
    manager: type[EnvironmentManager] | None = None
    """The class that was published for it; without one, the general class that its capabilities call for."""


def _attach_method(backend: str, module: str, manager: type[EnvironmentManager], *required: str) -> Method:
    return Method(backend, module, attaches=True, required=required, manager=manager)


METHODS: dict[str, Method] = {
    "docker_build": Method("DockerBackend", "docker", manager=published_managers.ContainerBuildManager),
    "docker_attach": _attach_method(
        "DockerBackend", "docker", published_managers.ContainerAttachManager, "container_name"
    ),
    "podman_build": Method("PodmanBackend", "podman", manager=published_managers.ContainerBuildManager),
    "podman_attach": _attach_method(
        "PodmanBackend", "podman", published_managers.ContainerAttachManager, "container_name"
    ),
    "hybrid_build": Method("HybridBackend", "hybrid", manager=published_managers.HybridBuildManager),
    "hybrid_attach": _attach_method(
        "HybridBackend", "hybrid", published_managers.HybridAttachManager, "container_name"
    ),
    "waypoint_build": Method("WaypointBackend", "waypoint", manager=published_managers.WaypointBuildManager),
    "waypoint_attach": _attach_method(
        "WaypointBackend", "waypoint", published_managers.WaypointAttachManager, "session_id"
    ),
    "microvm_build": Method("MicrovmBackend", "microvm.backend"),
    "firecracker_build": Method(
        "FirecrackerBackend", "microvm.backend", manager=published_managers.FireBuildManager
    ),
    "firecracker_attach": _attach_method(
        "FirecrackerAttachBackend",
        "microvm.firecracker_attach",
        published_managers.FireAttachManager,
        "pid",
        "key",
    ),
    "memory": Method("MemoryBackend", "memory"),
    "criu_build": Method("CriuBackend", "criu", manager=published_managers.CRIUBuildManager),
    "criu_attach": _attach_method(
        "CriuAttachBackend", "criu_attach", published_managers.CRIUAttachManager, "target_pid"
    ),
    "gvisor_build": Method("GvisorBackend", "gvisor", manager=published_managers.GvisorBuildManager),
    "gvisor_attach": _attach_method(
        "GvisorAttachBackend", "gvisor", published_managers.GvisorAttachManager, "container_name"
    ),
}
METHODS |= {f"ckpt_{how}": METHODS[f"waypoint_{how}"] for how in ("build", "attach")}  # the older name


ALWAYS_TAKEN = ("decider", "strict", "state_dir")
"""The options of every method."""


def create_env_manager(method: str, **options: Any) -> EnvironmentManager:
    """Make or take over an environment.

    Every method takes ``decider=``, ``strict=`` and ``state_dir=``; what else it takes is in docs/backends.md. Raises
    UnknownMethod (a ValueError), MissingOption (a KeyError), and another StateForkError when the environment cannot be
    made (with ``strict`` or not: there is no manager yet that could return None).
    """
    _require_method(method)
    chosen = METHODS[method]
    for name in chosen.required:
        if name not in options:
            raise MissingOption(method, name)
    decider: Decider | None = options.pop("decider", None)
    strict: bool = options.pop("strict", False)
    state_dir = _state_dir(options.pop("state_dir", None))
    _require_known(method, options)
    options = backend_class(method).settled(options)
    backend_class(method).require(options)
    if chosen.attaches:
        core = _attach(method, options, state_dir, decider)
    else:
        core = _new(method, options, state_dir, decider)
        core.start()
    return _manager(core, method, strict=strict)


def open_env_manager(
    environment_id: str,
    *,
    state_dir: str | Path | None = None,
    decider: Decider | None = None,
    strict: bool = False,
    with_history: bool = True,
) -> EnvironmentManager:
    """Open an environment that another process left, with its tree, branches and statistics.

    ``with_history=False`` does not read the statistics: they may be damaged, and ending an environment needs none.
    """
    directory = EnvironmentDirectory.open(_state_dir(state_dir), environment_id)
    with _released_on_failure(directory):
        record = directory.load(with_history=with_history)
        backend = _backend(record.method, directory.path, record.options)
        core = Environment(backend, directory, record, decider=decider)
        return _manager(core, record.method, strict=strict)


def _new(method: str, options: dict[str, Any], state_dir: Path, decider: Decider | None) -> Environment:
    directory = EnvironmentDirectory.create(state_dir)
    try:
        backend = _backend(method, directory.path, options)
        record = EnvironmentRecord(id=directory.id, method=method, options=options)
        return Environment(backend, directory, record, decider=decider)
    except BaseException:
        directory.remove()
        raise


def _attach(method: str, options: dict[str, Any], state_dir: Path, decider: Decider | None) -> Environment:
    """Take over an environment, with the history that we kept if we have taken it over before."""
    directory = _find_known(method, options, state_dir)
    if directory is None:
        core = _new(method, options, state_dir, decider)
        give_up = core.close
    else:
        with _released_on_failure(directory):
            backend = _backend(method, directory.path, options)
            core = Environment(backend, directory, directory.load(), decider=decider)
        give_up = core.leave
    try:
        core.adopt(core.backend.attach())
    except BaseException:
        give_up()
        raise
    return core


@contextmanager
def _released_on_failure(directory: EnvironmentDirectory) -> Iterator[None]:
    try:
        yield
    except BaseException:
        directory.release()
        raise


def _find_known(method: str, options: dict[str, Any], state_dir: Path) -> EnvironmentDirectory | None:
    kind = backend_class(method)
    identity = kind.identity(options)
    if identity is None:
        return None
    for path in directories(state_dir):
        try:
            record = read_record(path)
        except StateForkError as error:
            log.warning("%s", error)
            continue
        # An older name of the method may be in the record.
        if METHODS.get(record.method) == METHODS[method] and kind.identity(record.options) == identity:
            main = record.branches.get(MAIN)
            if main is not None and _backend(method, path, options).is_still(main.instance):
                return EnvironmentDirectory.open(state_dir, path.name)
    return None


def _manager(core: Environment, method: str, *, strict: bool) -> EnvironmentManager:
    general = ForkableEnvironmentManager if core.capabilities.concurrent_branches else EnvironmentManager
    return (METHODS[method].manager or general)(core, strict=strict)


def option_names(method: str, options: Mapping[str, Any]) -> list[str]:
    """The options of a method's backend, without those that every method takes. Raises UnknownMethod."""
    return list(option_defaults(method, options))


def option_defaults(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options with their defaults; ``Parameter.empty`` for those that must be given."""
    _require_method(method)
    kind = backend_class(method).for_options(options)
    defaults: dict[str, Any] = {}
    for ancestor in kind.__mro__:
        if "__init__" not in vars(ancestor):
            continue
        parameters = signature(vars(ancestor)["__init__"]).parameters.values()
        own = {entry.name: entry.default for entry in parameters if entry.kind is Parameter.KEYWORD_ONLY}
        defaults = {**own, **defaults}
        if all(entry.kind is not Parameter.VAR_KEYWORD for entry in parameters):
            break
    return defaults


def _require_method(method: str) -> None:
    if method not in METHODS:
        raise UnknownMethod(method, list(METHODS))


def _require_known(method: str, options: Mapping[str, Any]) -> None:
    known = option_names(method, options)
    for name in options:
        if name not in known:
            takes = ", ".join((*ALWAYS_TAKEN, *known))
            raise WrongUse(f"{method} takes no option {name!r}", hint=f"it takes {takes}")


def _backend(method: str, home: Path, options: dict[str, Any]) -> Backend:
    return backend_class(method).for_options(options)(home, f"statefork-{home.name}", **options)


def backend_class(method: str) -> type[Backend]:
    """The class behind a method, imported now."""
    module = import_module(f"statefork.backends.{METHODS[method].module}")
    found: type[Backend] = getattr(module, METHODS[method].backend)
    return found


def _state_dir(chosen: str | Path | None) -> Path:
    return default_state_dir(os.environ) if chosen is None else Path(chosen).resolve()
