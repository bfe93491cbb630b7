"""CRIU as container runtimes find it: a program named ``criu`` in a directory that comes first on their PATH.

It starts the CRIU that Waypoint uses, with the library that is loaded into it (native/preload), and corrects what runc
leaves wrong: options that runc cannot pass come from a file; a network without interfaces gets its loopback back; and
the images are repaired where CRIU could not restore them.
"""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from waypoint.config import DEFAULT_STATE_DIR
from waypoint.kernel.criu.log import digest_log
from waypoint.kernel.criu.provision import CriuBuild
from waypoint.session.context import preload_path
from waypoint.session.setup import find_criu

__all__ = ["CriuPrograms", "find_usable_criu", "make_criu_program", "reason_in_log"]

GHOST_LIMIT_BYTES = 512 << 20  # deleted but open files up to this size are saved with the processes

_LOG_FILE = re.compile(r"(?:log file|path)[:=] *(/\S+\.log)")

_OPTIONS = f"""\
file-locks
ext-unix-sk
link-remap
ghost-limit {GHOST_LIMIT_BYTES}
network-lock skip
"""

# When the containers' namespaces are there and nothing is in them yet.
_ACTION = """\
#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = setup-namespaces ] || exit 0
exec nsenter --target "$CRTOOLS_INIT_PID" --net ip link set lo up
"""

# The caller is `runc checkpoint|restore --image-path DIRECTORY`; it continues when we have ended.
_PROGRAM = """\
#!/bin/sh
export WAYPOINT_CRIU_CONFIG={config}
words=$(tr '\\0' '\\n' </proc/$PPID/cmdline)
verb=$(echo "$words" | grep -m 1 -xE 'checkpoint|restore')
images=$(echo "$words" | sed -n '/^--image-path$/ {{ n; p; }}')
case "$1 $verb" in
"swrk checkpoint")
    LD_PRELOAD={preload} {criu} "$@" || exit
    exec {python} -c {repair} "$images" ;;
"swrk restore")
    [ ! -f "$images/terminals" ] || export WAYPOINT_TERMINALS="$(cat "$images/terminals")" ;;
esac
LD_PRELOAD={preload} exec {criu} "$@"
"""

_REPAIR = """\
import pathlib, sys
from waypoint.kernel.criu.images import repair_controlling_terminals, repair_foreground_groups, terminals_of_init
images = pathlib.Path(sys.argv[1])
repair_foreground_groups(images)
repair_controlling_terminals(images)
(images / "terminals").write_text(terminals_of_init(images))
"""


@dataclass(frozen=True, slots=True)
class CriuPrograms:
    """Two directories for PATH: one CRIU restores TCP connections, the other restores them closed."""

    keeping: Path
    closing: Path

    @classmethod
    def make(cls, directory: Path, criu: CriuBuild) -> "CriuPrograms":
        return cls(
            make_criu_program(directory / "criu", criu),
            make_criu_program(directory / "criu-closing", criu, closes_connections=True),
        )


def find_usable_criu() -> CriuBuild | None:
    """The CRIU that ``waypoint setup`` has found or fetched."""
    return find_criu(Path(DEFAULT_STATE_DIR))


def make_criu_program(directory: Path, criu: CriuBuild, *, closes_connections: bool = False) -> Path:
    """Write the program and what it needs; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config, action = directory / "criu.conf", directory / "action"
    _write(action, _ACTION, mode=0o755)
    connections = "tcp-close" if closes_connections else "tcp-established"
    _write(config, f"{_OPTIONS}{connections}\naction-script {action}\n")
    program = _PROGRAM.format(
        config=shlex.quote(os.fspath(config)),
        preload=shlex.quote(os.fspath(preload_path())),
        criu=shlex.join(criu.command),
        python=shlex.quote(sys.executable),
        repair=shlex.quote(_REPAIR),
    )
    _write(directory / "criu", program, mode=0o755)
    return directory


def reason_in_log(said: str) -> str:
    """Why CRIU failed, from its log, which the runtime only names; else what the runtime said."""
    named = _LOG_FILE.search(said)
    if named is None:
        return said
    return digest_log(Path(named[1]), Path(os.devnull)) or said


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write the file whole or not at all: a program of that name may just be starting."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.chmod(mode)
    os.rename(draft, path)
