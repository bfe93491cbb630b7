"""``statefork bench``: the same work on several backends, measured side by side in one run."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from statefork.benchmark.base import build_directory
from statefork.benchmark.docker_daemon import docker_daemon
from statefork.benchmark.measure import Measurement, measure, measure_survival
from statefork.benchmark.picture import as_svg
from statefork.benchmark.report import as_csv, as_documents, as_json, as_records, as_table
from statefork.benchmark.workloads import Workload, make_workload
from statefork.cli.answer import Answer
from statefork.cli.method import given_options, method_name
from statefork.errors import StateForkError, WrongUse
from statefork.factory import (
    ALWAYS_TAKEN,
    METHODS,
    backend_class,
    create_env_manager,
    option_names,
)
from statefork.manager import EnvironmentManager

__all__ = ["bench"]

_CONTAINERS = ("docker_build", "podman_build", "hybrid_build")


def bench(options: argparse.Namespace) -> Answer:
    workload = make_workload(" ".join(options.workload))
    if options.repeat < 1:
        raise WrongUse(f"--repeat {options.repeat}", hint="at least once")
    if options.output is not None:
        _make_directory(options.output)  # first: if it cannot be made, all the work would be in vain
    given = given_options(options)
    measurements = []
    with ExitStack() as stack:
        if options.private_docker:
            _say("starting a Docker daemon for this run")
            stack.enter_context(_private_docker())
        names = options.methods.split(",") if options.methods else _available()
        methods = {name: method_name(name) for name in names}
        _refuse_attached(methods.values())
        _refuse_unknown_options(methods.values(), given)
        if "dockerfile_dir" not in given and any(
            "dockerfile_dir" in option_names(method, given) for method in methods.values()
        ):
            _say("preparing a base")
            kept = given.get("waypoint_state_dir")
            base = build_directory(options.base, _say, waypoint_state_dir=str(kept) if kept else None)
            given["dockerfile_dir"] = str(stack.enter_context(base))
        for name, method in methods.items():
            make = partial(create_env_manager, method, **_options_of(method, given))
            measurements.append(_measure(name, method, make, workload, options))
    if options.output is not None:
        _write(options.output, measurements)
    return Answer(
        text=as_table(measurements),
        document=as_documents(measurements),
        exit_code=1 if any(found.failure for found in measurements) else 0,
    )


def _measure(
    name: str,
    method: str,
    make: Callable[[], EnvironmentManager],
    workload: Workload,
    options: argparse.Namespace,
) -> Measurement:
    if not backend_class(method).runs_programs and workload.app is not None:
        _say(f"{name} runs no programs: measured with the workload bare")
        workload = make_workload("bare")
    _say(f"{name}: {workload.name}, {options.repeat} times")
    found = measure(name, make, workload, options.repeat)
    if options.survival and not found.failure:
        _say(f"{name}: probing what survives a restore")
        _add_survival(found, make)
    if found.failure:
        _say(f"{name}: {found.failure}")
    return found


@contextmanager
def _private_docker() -> Iterator[None]:
    """Start a daemon of our own; DOCKER_HOST names it while the block lasts."""
    before = os.environ.get("DOCKER_HOST")
    with docker_daemon(Path("/var/tmp")) as host:
        os.environ["DOCKER_HOST"] = host
        try:
            yield
        finally:
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before


def _options_of(method: str, given: Mapping[str, object]) -> dict[str, object]:
    """The given options that a method takes. Containers get no network but loopback, as all others have."""
    names = (*ALWAYS_TAKEN, *option_names(method, given))
    taken = {name: value for name, value in given.items() if name in names}
    if method in _CONTAINERS:
        taken.setdefault("extra_args", ["--network=none"])
    return taken


def _refuse_attached(methods: Iterable[str]) -> None:
    """Run no workload in what someone else runs."""
    for method in methods:
        if method in METHODS and METHODS[method].attaches:
            raise WrongUse(
                f"{method} takes over what someone else runs, and a workload would change it",
                hint="measure methods that make environments of their own, such as docker_build",
            )


def _refuse_unknown_options(methods: Iterable[str], given: Mapping[str, object]) -> None:
    known = {*ALWAYS_TAKEN, *(name for method in methods for name in option_names(method, given))}
    for name in given:
        if name not in known:
            raise WrongUse(f"none of these methods takes the option {name!r}")


def _available() -> list[str]:
    built = [name for name in METHODS if name.endswith("_build") and name != "ckpt_build"]
    return [name.removesuffix("_build") for name in built if backend_class(name).probe().is_available]


def _add_survival(found: Measurement, make: Callable[[], EnvironmentManager]) -> None:
    try:
        found.survived = measure_survival(make)
    except StateForkError as error:
        found.failure = str(error)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongUse(
            f"--output {path}: {error.strerror}", hint="name a directory that can be created"
        ) from error


def _write(directory: Path, measurements: list[Measurement]) -> None:
    for name, text in (
        ("bench.csv", as_csv(measurements)),
        ("bench.json", as_json(measurements)),
        ("bench.svg", as_svg(measurements)),
        ("bench.md", as_table(measurements) + "\n"),
        ("bench.txt", as_records(measurements)),
    ):
        (directory / name).write_text(text)


def _say(text: str) -> None:
    print(f"statefork: {text}", file=sys.stderr, flush=True)
