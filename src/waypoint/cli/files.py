"""The verb on files: cp."""

import argparse
import sys
import time
from dataclasses import dataclass

from waypoint.cli.answer import Answer
from waypoint.cli.units import megabytes
from waypoint.errors import InvalidName, UsageError
from waypoint.model import CopyResult
from waypoint.names import MAIN, parse_name
from waypoint.session.session import Branch
from waypoint.session.waypoint import Waypoint

__all__ = ["Endpoint", "Progress", "cp", "parse_endpoint"]

STREAM = "-"
PROGRESS_AFTER_S = 2.0
PROGRESS_EVERY_S = 0.2
DRAIN_BYTES = 1 << 20

_HINT = "one of the two is SESSION[:BRANCH]:/PATH, the other a path on the host or - for a tar stream"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One side of a copy; ``session`` is empty for a path on the host."""

    session: str
    branch: str
    path: str


def parse_endpoint(text: str, *, session: str | None = None) -> Endpoint:
    """Read ``SESSION[:BRANCH]:/PATH``, or if ``session`` is given ``BRANCH:/PATH``; all else is a path on the host."""
    names, separator, rest = text.partition(":/")
    words = names.split(":")
    if not separator or len(words) > (2 if session is None else 1):
        return Endpoint("", "", text)
    try:
        for word in words:
            parse_name("session or branch", word)
    except InvalidName:
        return Endpoint("", "", text)
    if session is not None:
        words = [session, *words]
    return Endpoint(words[0], words[1] if len(words) == 2 else MAIN, f"/{rest}")


def cp(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    source, target = _endpoints([word for word in options.operands if word is not None])
    inside = source if source.session else target
    branch = waypoint.session(inside.session).branch(inside.branch)
    progress = Progress(is_wanted=sys.stderr.isatty() and not options.quiet and not options.json)
    try:
        copied = _copy(branch, source, target, options, progress)
    finally:
        progress.clear()
    return Answer(
        text="",
        document={
            "session_id": branch.session.id,
            "branch": branch.name,
            "direction": "in" if target.session else "out",
            "files": copied.files,
            "directories": copied.directories,
            "links": copied.links,
            "bytes": copied.size_bytes,
        },
    )


def _endpoints(operands: list[str]) -> tuple[Endpoint, Endpoint]:
    session = parse_name("session", operands[0]) if len(operands) == 3 else None
    source, target = (parse_endpoint(word, session=session) for word in operands[-2:])
    if bool(source.session) == bool(target.session):
        what = "both are" if source.session else "neither is"
        raise UsageError(f"exactly one side of a copy must be in a branch, but {what}", hint=_HINT)
    return source, target


def _copy(
    branch: Branch, source: Endpoint, target: Endpoint, options: argparse.Namespace, progress: "Progress"
) -> CopyResult:
    links, wait = options.links, options.wait
    if source.session and target.path == STREAM:
        if options.json or sys.stdout.isatty():
            what = "standard output together with --json" if options.json else "a terminal"
            raise UsageError(
                f"cannot write a tar stream to {what}", hint="pipe it: waypoint cp DEMO:/PATH - | tar t"
            )
        return branch.download_tar(
            source.path, sys.stdout.buffer, links=links, wait=wait, on_progress=progress
        )
    if source.session:
        return branch.download(source.path, target.path, links=links, wait=wait, on_progress=progress)
    if source.path == STREAM:
        stream = sys.stdin.buffer
        copied = branch.upload_tar(stream, target.path, links=links, wait=wait, on_progress=progress)
        while stream.read(DRAIN_BYTES):  # the archive's padding: its writer must not fail because we stop
            pass
        return copied
    return branch.upload(source.path, target.path, links=links, wait=wait, on_progress=progress)


class Progress:
    """Shows on a terminal how far a copy is, once it has taken a while."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._next = time.monotonic() + PROGRESS_AFTER_S
        self._width = 0

    def __call__(self, copied: CopyResult) -> None:
        if not self._is_wanted or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_EVERY_S
        self._show(f"waypoint: {copied.files} files, {megabytes(copied.size_bytes)}")

    def clear(self) -> None:
        if self._width:
            self._show("")
            print(end="\r", file=sys.stderr, flush=True)

    def _show(self, text: str) -> None:
        print(f"\r{text:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(text))
