"""The verbs of ``statefork``: short functions over :mod:`statefork.factory`."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from statefork.backend import Backend, Capabilities
from statefork.cli.answer import Answer
from statefork.cli.method import given_options, method_name
from statefork.cli.shell import InteractiveShell, read_lines
from statefork.deciders import make_decider
from statefork.errors import CommandTimedOut, StateForkError, WrongUse
from statefork.factory import METHODS, backend_class, create_env_manager, open_env_manager
from statefork.manager import EnvironmentManager
from statefork.record import default_state_dir, directories, read_record

__all__ = [
    "backends",
    "cleanup",
    "create",
    "exec_",
    "fork",
    "list_",
    "restore",
    "shell",
    "snapshot",
    "stats",
    "tree",
]

EXIT_START_FAILED, EXIT_CRASHED, EXIT_TIMEOUT = 2, 1, 124


def backends(options: argparse.Namespace) -> Answer:
    """One line for each backend: what it keeps, or what is missing."""
    chosen = {name: backend_class(name if name in METHODS else f"{name}_build") for name in _backend_names()}
    if options.markdown:
        return Answer(text=capability_table(chosen), document={})
    lines, documents = [], []
    for name, kind in chosen.items():
        found = kind.probe()
        lines.append(
            f"{name:<12} {'yes' if found.is_available else 'no ':<4} keeps {', '.join(kind.capabilities.names())}"
        )
        if not found.is_available:
            lines += [f"{'':<17} {text}" for text in (found.reason, found.remedy) if text]
        documents.append(
            {
                "backend": name,
                "available": found.is_available,
                "keeps": kind.capabilities.names(),
                "detail": found.detail,
                "reason": found.reason,
                "remedy": found.remedy,
            }
        )
    return Answer(text="\n".join(lines), document={"backends": documents})


def capability_table(kinds: Mapping[str, type[Backend]]) -> str:
    """What each backend claims, as Markdown. The contract tests prove every claim, and every absence."""
    names = [entry.name for entry in fields(Capabilities)]
    rows = [["backend", *(name.replace("_", " ") for name in names)], ["---"] * (len(names) + 1)]
    for name, kind in kinds.items():
        rows.append([f"`{name}`", *("yes" if getattr(kind.capabilities, key) else "-" for key in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _backend_names() -> list[str]:
    built = [method.removesuffix("_build") for method in METHODS if not method.endswith("_attach")]
    return [name for name in built if name != "ckpt"]  # another name of waypoint


def create(options: argparse.Namespace) -> Answer:
    env = _create(options)
    env.core.leave()
    return Answer(text=env.core.id, document={"environment": env.core.id, "backend": env.backend})


def shell(options: argparse.Namespace) -> Answer:
    """The interactive shell. Ends with 2 if the environment cannot be made, with 1 if it is cut off."""
    try:
        env = _create(options, decider=make_decider(options.decider, threshold=options.threshold))
    except StateForkError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        return Answer(
            text="", errors=f"statefork: error: {error}{hint}", document={}, exit_code=EXIT_START_FAILED
        )
    with env:
        interactive = InteractiveShell(env, sys.stdout)
        try:
            interactive.run(read_lines(interactive.words, _state_dir(options) / "shell_history"))
        except KeyboardInterrupt:
            return Answer(text="", errors="interrupted; cleaned up", document={}, exit_code=EXIT_CRASHED)
    return Answer(text="", document={})


def list_(options: argparse.Namespace) -> Answer:
    found, damaged = [], []
    for path in directories(_state_dir(options)):
        try:
            found.append(read_record(path))
        except StateForkError as error:
            if not path.exists():  # cleaned up by another process while we looked
                continue
            damaged.append(f"{error}\n  hint: {error.hint}" if error.hint else str(error))
    lines = [
        f"{record.id}  {record.method}  branches={len(record.branches)} snapshots={len(record.nodes)}"
        for record in found
    ]
    return Answer(
        text="\n".join(lines) or "No environments.",
        errors="\n".join(damaged),
        exit_code=1 if damaged else 0,
        document={
            "environments": [
                {
                    "environment": record.id,
                    "method": record.method,
                    "branches": list(record.branches),
                    "snapshots": len(record.nodes),
                }
                for record in found
            ]
        },
    )


def exec_(options: argparse.Namespace) -> Answer:
    if not options.command:
        raise WrongUse("no command", hint="write it after --")
    command = options.command[0] if len(options.command) == 1 else options.command
    try:
        with _opened(options) as env:
            result = env.core.run(command, branch_id=options.branch, timeout_s=options.timeout)
    except CommandTimedOut as error:
        return Answer(
            text=error.output,
            errors=f"statefork: error: {error}",
            document={"error": {"message": str(error), "hint": error.hint}, "output": error.output},
            exit_code=EXIT_TIMEOUT,
        )
    return Answer(
        text=result.output,
        errors=result.errors,
        document={"exit_code": result.exit_code, "output": result.output, "errors": result.errors},
        exit_code=result.exit_code,
    )


def snapshot(options: argparse.Namespace) -> Answer:
    with _opened(options) as env:
        node = env.core.snapshot(options.branch, park=options.park, snapshot_id=options.id)
    return Answer(
        text=node.snapshot_id, document={"snapshot": node.snapshot_id, "is_virtual": node.is_virtual}
    )


def restore(options: argparse.Namespace) -> Answer:
    with _opened(options) as env:
        env.core.restore(options.snapshot, branch_id=options.branch)
    return Answer(text=f"Restored to snapshot {options.snapshot}", document={"restored": options.snapshot})


def fork(options: argparse.Namespace) -> Answer:
    with _opened(options) as env:
        made = env.core.fork(options.snapshot, n=options.n, ids=options.id)
    names = [branch.id for branch in made]
    return Answer(text="\n".join(names), document={"branches": names})


def tree(options: argparse.Namespace) -> Answer:
    with _opened(options) as env:
        nodes = [
            {"snapshot": node.snapshot_id, "parent": node.parent_id, "is_virtual": node.is_virtual}
            for node in env.core.tree.nodes.values()
        ]
        branches = {branch.id: branch.current_snapshot_id for branch in env.core.branches()}
        return Answer(text=env.print_snapshot_tree(), document={"snapshots": nodes, "branches": branches})


def stats(options: argparse.Namespace) -> Answer:
    with _opened(options) as env:
        text = f"{env.stats.print_stats()}\n{env.stats.print_size_details()}"
        history = [
            {"operation": entry.operation, "target": entry.target_id, "seconds": entry.elapsed_time}
            for entry in env.stats.entries
        ]
        return Answer(text=text, document={"history": history})


def cleanup(options: argparse.Namespace) -> Answer:
    core = open_env_manager(options.environment, state_dir=options.state_dir, with_history=False).core
    left = ""
    try:
        core.close()
    except StateForkError as error:
        if not options.force:
            core.leave()
            raise
        core.forget()
        left = f"left behind: {error}"
    return Answer(
        text=f"Environment {options.environment} removed",
        errors=left,
        document={"removed": options.environment, "left_behind": left},
    )


def _create(options: argparse.Namespace, **more: object) -> EnvironmentManager:
    return create_env_manager(method_name(options.method), **given_options(options), **more)


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[EnvironmentManager]:
    """Open the environment for the length of the block; it lives on afterwards."""
    env = open_env_manager(options.environment, state_dir=options.state_dir, strict=True)
    try:
        yield env
    finally:
        env.core.leave()


def _state_dir(options: argparse.Namespace) -> Path:
    chosen: Path | None = options.state_dir
    return default_state_dir(os.environ) if chosen is None else chosen
