"""A Debian root file system from the host's own package mirror, for hosts that can reach no image registry.

mmdebstrap installs the packages, apt checks their signatures with the keyring that the host's sources name. The
result gets the same sources, and trusts the certificates that were added to this host: behind a company's proxy
``apt`` and ``pip`` would not work without them.
"""

import dataclasses
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from waypoint.errors import AbilityMissing, BuildFailed, ToolFailed, ToolMissing, UsageError
from waypoint.kernel.apt.packages import host_codename
from waypoint.kernel.apt.sources import APT_DIR, OS_RELEASE, AptSource, debian_archives, read_sources
from waypoint.kernel.processes.private_namespaces import run_private
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool

__all__ = ["DEBIAN_SUITES", "bootstrap_debian", "debian_suite"]

BOOTSTRAP_TIMEOUT_S = 3600.0
DEBIAN_SUITES = ("bullseye", "bookworm", "trixie", "forky", "sid")
_ALWAYS = ("ca-certificates",)
_HINT = "is the mirror that apt uses here reachable? try: apt-get update"
_MEMORY_NEEDED_BYTES = 6 << 30
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
# Settings of the host that apt inside needs too: how to reach the mirror, and whether that is a frozen one.
_APT_OPTIONS = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until")

# Arguments: the destination, a working directory, the sources, "memory" or "disk", and the command.
# dpkg waits for the disk after every file; in memory there is nothing to wait for.
_SCRIPT = """\
target=$1 work=$2 sources=$3 where=$4; shift 4
if [ "$where" = memory ]; then mount -t tmpfs -o mode=0755,size=90% waypoint-bootstrap "$work"; fi
mkdir "$work/root"
TMPDIR="$work" "$@" "$work/root" "$sources"
cp -a --reflink=auto -T "$work/root" "$target"
"""
# mmdebstrap gives each hook to a shell, with the tree as its argument.
_TRUST_HOOK = (
    f'mkdir -p "$1{_CERTIFICATES}" && cp -rL --no-preserve=ownership {_CERTIFICATES}/. "$1{_CERTIFICATES}"'
    ' && chroot "$1" update-ca-certificates'
)
_KEYRING_HOOK = 'mkdir -p "$1"{directory} && cp -L {path} "$1"{path}'


def debian_suite(reference: str) -> str:
    """The Debian suite of a reference such as ``debian:bookworm``. Raises UsageError for any other reference."""
    distribution, _, tag = reference.partition(":")
    suite = tag.removesuffix("-slim")
    if distribution != "debian" or suite not in DEBIAN_SUITES:
        raise UsageError(
            f"cannot bootstrap {reference!r}",
            hint=f"known are {', '.join(f'debian:{known}' for known in DEBIAN_SUITES)};"
            " import any other system from an archive: waypoint base import TAR --name NAME",
        )
    return suite


def bootstrap_debian(
    suite: str,
    target: Path,
    *,
    work: Path,
    include: Sequence[str],
    env: Mapping[str, str],
    hold: Iterable[int] = (),
    on_output: Callable[[bytes], None] | None,
) -> None:
    """Fill the empty directory ``target`` with a minimal Debian and the packages ``include``."""
    if shutil.which("mmdebstrap", path=CLEAN_ENV["PATH"]) is None:
        raise ToolMissing("mmdebstrap", package="mmdebstrap")
    archives = _archives(suite, read_sources(APT_DIR))
    sources, tree = work / "host.sources", work / "tree"
    tree.mkdir(parents=True)
    sources.write_text("\n".join(map(_source_text, archives)))
    command = (
        *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"),
        *(f"--include={','.join((*_ALWAYS, *include))}", "--dpkgopt=force-unsafe-io"),
        *(f"--aptopt={option}" for option in _apt_options()),
        *(f"--customize-hook={hook}" for hook in _hooks(archives)),
        suite,
    )
    where = "memory" if _available_memory() >= _MEMORY_NEEDED_BYTES else "disk"
    try:
        run_private(
            _SCRIPT,
            ("mmdebstrap", os.fspath(target), os.fspath(tree), os.fspath(sources), where, *command),
            timeout_s=BOOTSTRAP_TIMEOUT_S,
            env={**CLEAN_ENV, **env},
            hold=tuple(hold),
            on_output=on_output,
        )
    except ToolFailed as error:
        raise BuildFailed(f"cannot bootstrap Debian {suite}: {_reason(error.stderr)}", hint=_HINT) from error


def _archives(suite: str, sources: list[AptSource]) -> list[AptSource]:
    """The host's sources of this suite and its updates; if they lack it, the suite from its own Debian mirror."""
    wanted = (suite, f"{suite}-updates", f"{suite}-security")
    found = [
        dataclasses.replace(source, suites=tuple(name for name in wanted if name in source.suites))
        for source in sources
        if "main" in source.components and set(wanted) & set(source.suites)
    ]
    if any(suite in source.suites for source in found):
        return found
    archives = debian_archives(sources, host_codename(OS_RELEASE))
    if not archives:
        raise AbilityMissing(
            f"no source of Debian packages is configured in {APT_DIR}",
            hint="make the base elsewhere and bring it here: waypoint base import TAR --name NAME",
        )
    return [dataclasses.replace(archives[0], suites=(suite,))]


def _source_text(source: AptSource) -> str:
    lines = ["Types: deb", f"URIs: {source.uri}", f"Suites: {' '.join(source.suites)}", "Components: main"]
    if source.signed_by is not None:
        lines.append(f"Signed-By: {source.signed_by}")
    return "\n".join(lines) + "\n"


def _apt_options() -> list[str]:
    dump = run_tool(("apt-config", "dump", "--format", '%f "%v";%n', "Acquire"), timeout_s=30.0).stdout
    return [line.removesuffix(";") for line in dump.splitlines() if line.startswith(_APT_OPTIONS)]


def _hooks(archives: list[AptSource]) -> list[str]:
    """The commands that mmdebstrap runs on the tree once all packages are installed."""
    keyrings = {source.signed_by for source in archives if source.signed_by and source.signed_by[0] == "/"}
    hooks = [
        _KEYRING_HOOK.format(directory=shlex.quote(os.path.dirname(path)), path=shlex.quote(path))
        for path in sorted(keyrings)
        if not path.startswith("/usr/share/keyrings/debian-archive-")  # in a package that is always installed
    ]
    if _CERTIFICATES.is_dir() and any(_CERTIFICATES.iterdir()):
        hooks.append(_TRUST_HOOK)
    return hooks


def _available_memory() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.startswith("E:")]
    return lines[0].removeprefix("E:").strip() if lines else "mmdebstrap failed"
