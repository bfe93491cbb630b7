"""Verbs on bases: build, base list, bootstrap, import, export, rm."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from waypoint.cli.answer import Answer
from waypoint.cli.build_progress import bases_of, build_progress
from waypoint.cli.creation import create_session
from waypoint.cli.older_documents import work_path
from waypoint.cli.settings import older_key_notes
from waypoint.cli.sharing import shared_document, sharing_notes
from waypoint.cli.target import parse_size
from waypoint.cli.units import age, megabytes
from waypoint.errors import UsageError
from waypoint.model import BaseRecord
from waypoint.session.creation.image_settings import image_command
from waypoint.session.waypoint import Waypoint
from waypoint.store.image_names import short_name

__all__ = [
    "base_bootstrap",
    "base_export",
    "base_import",
    "base_list",
    "base_prune",
    "base_rm",
    "build",
]


def build(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    with build_progress(options) as show:
        base = bases_of(waypoint).build(
            options.context,
            dockerfile=options.file,
            arguments=_build_arguments(options.build_arg or ()),
            names=options.tag or (),
            on_output=show,
        )
    options.base, options.from_image, options.directory = base.id, None, options.workdir
    session = create_session(waypoint, options, size=parse_size(options.size) if options.size else None)
    directory, pid = work_path(session.status()), session.main.record.init_pid
    lines = ["Sandbox environment built successfully!", f"Session ID: {session.id}"]
    if options.name:
        lines.append(f"Name: {options.name}")
    lines += [
        f"Work in this directory: {directory}",
        f"Sandbox bash PID: {pid}",
        *_image_notes(base, session.id),
    ]
    return Answer(
        text="\n".join([*lines, "", "Save the session ID for future operations!"]),
        quiet=f"{session.id},{directory},{pid}",
        notes=[*older_key_notes(options), *sharing_notes(session.record.settings)],
        document={
            "session_id": session.id,
            "name": session.record.name,
            "directory": directory,
            "pid": pid,
            "workspace": session.record.workspace,
            "base": _document(base, [session.record.name or session.id]),
            **shared_document(session.record.settings),
        },
    )


def base_list(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    bases = bases_of(waypoint)
    found = [(base, bases.users(base)) for base in bases.all()]
    lines = ["Bases:"] if found else ["No bases found; make one: waypoint base bootstrap debian:bookworm"]
    for base, users in found:
        lines.append(
            f"  {_names(base)} id={base.id[:12]} size={megabytes(base.size_bytes)} sessions={len(users)}"
            f" {age(base.created_at)} from {base.source}"
        )
    return Answer(
        text="\n".join(lines),
        quiet="\n".join(_names(base) for base, _ in found),
        document={"bases": [_document(base, users) for base, users in found]},
    )


def base_bootstrap(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    packages = [package for words in options.include or () for package in words.split(",") if package]
    with build_progress(options) as show:
        return _new_base(
            bases_of(waypoint).bootstrap(
                options.release, include=packages, names=options.name or (), on_output=show
            )
        )


def base_import(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    with build_progress(options) as show:
        return _new_base(bases_of(waypoint).import_(options.source, names=options.name or (), on_output=show))


def base_export(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    bases = bases_of(waypoint)
    base = bases.find(options.base)
    if options.file == "-":
        if sys.stdout.isatty():
            raise UsageError(
                "cannot write an archive to a terminal", hint="redirect the output, or name a file"
            )
        bases.export(base, sys.stdout.buffer.write)
        return Answer(text="", document={})
    draft = Path(f"{options.file}.part")
    try:
        with draft.open("wb") as out:
            bases.export(base, out.write)
        draft.rename(options.file)
    finally:
        draft.unlink(missing_ok=True)
    size = os.stat(options.file).st_size
    return Answer(
        text=f"Base '{options.base}' exported to {options.file} ({megabytes(size)})",
        quiet=options.file,
        document={"file": options.file, "size_bytes": size, "id": base.id},
    )


def base_rm(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    bases = bases_of(waypoint)
    removed = [bases.remove(reference).id for reference in options.bases]
    return Answer(
        text="\n".join(f"Base '{reference}' removed" for reference in options.bases),
        document={"removed": removed},
    )


def base_prune(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    removed = [base.id for base in bases_of(waypoint).prune()]
    return Answer(text=f"{len(removed)} bases removed", document={"removed": removed})


def _build_arguments(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise UsageError(f"{word!r} is not K=V", hint="such as --build-arg VERSION=3")
        found[name] = value if equals else os.environ.get(name, "")
    return found


def _names(base: BaseRecord) -> str:
    return ",".join(short_name(name) for name in base.names) or base.id[:12]


def _image_notes(base: BaseRecord, session_id: str) -> list[str]:
    """The image's command and ports: the user starts and exposes them."""
    lines = []
    command = image_command(base.config)
    if command:
        lines.append(f"Command of the image, not started: {command}")
    if base.config.ports:
        port = base.config.ports[0].partition("/")[0]
        ports = ", ".join(base.config.ports)
        lines.append(f"Ports of the image: {ports} (reach one: waypoint expose {session_id} {port})")
    return lines


def _new_base(base: BaseRecord) -> Answer:
    return Answer(
        text=f"Base '{_names(base)}' is ready: {base.id[:12]}, {megabytes(base.size_bytes)}\n"
        f"Use it: waypoint init --base {_names(base).partition(',')[0]}, or FROM in a Dockerfile",
        quiet=base.id,
        document=_document(base, []),
    )


def _document(base: BaseRecord, users: list[str]) -> dict[str, object]:
    return {
        "id": base.id,
        "names": [short_name(name) for name in base.names],
        "created_at": base.created_at,
        "size_bytes": base.size_bytes,
        "source": base.source,
        "sessions": users,
        "config": dataclasses.asdict(base.config),
    }
