"""Verbs on the host: setup, doctor, pool, version."""

import argparse
import os
import re
import sys
from pathlib import Path

from waypoint import __version__
from waypoint.cli.answer import Answer
from waypoint.cli.units import megabytes
from waypoint.config import DEFAULT_STATE_DIR
from waypoint.errors import Busy, UsageError
from waypoint.kernel.probe import Ability, can_checkpoint, probe_host
from waypoint.session.setup import find_criu, prepare_host
from waypoint.session.waypoint import Waypoint
from waypoint.store.layout import Layout
from waypoint.store.pool import open_pool, pool_usage, resize_pool

__all__ = [
    "PROXY_VARIABLES",
    "doctor",
    "parse_size",
    "pool_resize",
    "pool_status",
    "pool_unmount",
    "set_up_if_asked_by_older_key",
    "setup",
    "version",
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def parse_size(text: str) -> int:
    """The bytes that ``20G``, ``512M``, ``1.5T`` or a plain number means."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"cannot read {text!r} as a size", hint="write for example 20G or 512M")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def setup(state_dir: Path, options: argparse.Namespace) -> Answer:
    size = None if options.pool_size is None else parse_size(options.pool_size)
    prepared = prepare_host(
        state_dir,
        pool_size_bytes=size,
        proxies={name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ},
        progress=_print_progress,
    )
    usage = pool_usage(prepared.pool)
    where = "in a private directory" if prepared.criu.origin == "prefix" else "of this host"
    return Answer(
        text=f"Ready: CRIU {prepared.criu.version} {where}; pool {prepared.pool.kind},"
        f" {megabytes(usage.free_bytes)} free, at {state_dir}",
        document={
            "state_dir": os.fspath(state_dir),
            "criu": {"version": prepared.criu.version, "origin": prepared.criu.origin},
            "pool": {"kind": str(prepared.pool.kind), "free_bytes": usage.free_bytes},
        },
    )


def set_up_if_asked_by_older_key(state_dir: Path, options: argparse.Namespace) -> None:
    """Set up a new state directory that ``sessions_dir`` names: the programs with that key had no set-up."""
    if Layout(state_dir).host_facts.exists() or options.settings["state_dir"].source in ("flag", "default"):
        return
    older = options.settings["sessions_dir"]
    if os.path.realpath(str(older.value)) != os.fspath(state_dir):
        return
    _print_progress(f"{state_dir} ({older.source}) is new: setting it up")
    prepare_host(
        state_dir,
        pool_size_bytes=None,
        proxies={name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ},
        progress=_print_progress,
        criu_of=Path(DEFAULT_STATE_DIR),
    )


def _print_progress(message: str) -> None:
    print(f"waypoint: {message}", file=sys.stderr, flush=True)


def doctor(state_dir: Path, _options: argparse.Namespace) -> Answer:
    abilities = probe_host(find_criu(state_dir), state_dir)
    is_able = can_checkpoint(abilities)
    lines = [line for ability in abilities for line in _describe(ability)]
    verdict = "sessions can be checkpointed here" if is_able else "sessions cannot be checkpointed here"
    return Answer(
        text="\n".join([*lines, "", verdict]),
        document={
            "can_checkpoint": is_able,
            "abilities": [
                {
                    "name": ability.name,
                    "found": ability.found,
                    "required": ability.required,
                    "detail": ability.detail,
                    "why": ability.why,
                    "remedy": ability.remedy,
                }
                for ability in abilities
            ],
        },
        exit_code=0 if is_able else 7,
    )


def _describe(ability: Ability) -> list[str]:
    if ability.found:
        return [f"found    {ability.name}: {ability.detail}"]
    word = "MISSING" if ability.required else "missing"
    return [
        f"{word}  {ability.name}: {ability.detail}",
        f"         why it matters: {ability.why}",
        f"         how to get it: {ability.remedy}",
    ]


def pool_status(state_dir: Path, _options: argparse.Namespace) -> Answer:
    pool = open_pool(state_dir)
    usage = pool_usage(pool)
    return Answer(
        text=f"{pool.kind} at {pool.root}: {megabytes(usage.used_bytes)} used, {megabytes(usage.free_bytes)} free"
        f" of {megabytes(usage.total_bytes)}",
        document={
            "kind": str(pool.kind),
            "root": os.fspath(pool.root),
            "total_bytes": usage.total_bytes,
            "used_bytes": usage.used_bytes,
            "free_bytes": usage.free_bytes,
        },
    )


def pool_resize(state_dir: Path, options: argparse.Namespace) -> Answer:
    resize_pool(open_pool(state_dir), parse_size(options.size))
    return pool_status(state_dir, options)


def pool_unmount(state_dir: Path, options: argparse.Namespace) -> Answer:
    with Waypoint(state_dir) as waypoint:
        try:
            waypoint.unmount_pool()
        except Busy as error:
            if not options.if_idle:
                raise
            return Answer(text=f"Left mounted: {error}", document={"unmounted": False})
    return Answer(text="Pool unmounted; the next command mounts it again", document={"unmounted": True})


def version(_state_dir: Path, _options: argparse.Namespace) -> Answer:
    return Answer(
        text=f"waypoint version v{__version__}", document={"version": __version__}, quiet=__version__
    )
