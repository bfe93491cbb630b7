"""Where does this host get its Debian packages from? Reads apt's own source lists, changes nothing.

Both formats are understood: deb822 paragraphs (``*.sources``) and one-line entries (``sources.list``,
``*.list``). As apt does, files with other endings or odd names are ignored.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "APT_DIR",
    "OS_RELEASE",
    "AptSource",
    "debian_archives",
    "parse_deb822",
    "parse_one_line",
    "read_sources",
]

APT_DIR = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")

_FILE_NAME = re.compile(r"[A-Za-z0-9_.-]+\.(list|sources)")
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<rest>\S.*)")
_DISABLED = frozenset({"no", "false", "without", "off", "disable", "0"})
_SUITE_ALIASES = frozenset({"stable", "oldstable", "testing", "unstable", "sid"})
_DEBIAN_PATH = re.compile(r"/debian/?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """One archive of binary packages. ``signed_by`` is a keyring's path, or a key block as apt wrote it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None = None


def read_sources(apt_dir: Path) -> list[AptSource]:
    """Every archive in ``sources.list`` and ``sources.list.d`` of ``apt_dir``, in apt's order."""
    files = [apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))]
    found: list[AptSource] = []
    for path in files:
        if not _FILE_NAME.fullmatch(path.name) or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    return found


def debian_archives(sources: list[AptSource], codename: str) -> list[AptSource]:
    """The sources that may be Debian's own archive for a host of release ``codename``, the likeliest first.

    A third party may give its suite the release's name too, so sources with the usual path of a mirror come first.
    """
    wanted = _SUITE_ALIASES | {codename}
    fitting = [
        source
        for source in sources
        if "main" in source.components
        and wanted.intersection(source.suites)
        and not source.uri.startswith("cdrom:")
    ]
    return sorted(fitting, key=lambda source: 0 if _DEBIAN_PATH.search(source.uri) else 1)


def parse_deb822(text: str) -> list[AptSource]:
    """The archives of a ``.sources`` file; paragraphs that are disabled or not understood are skipped."""
    found = []
    for fields in _paragraphs(text):
        if fields.get("enabled", "yes").lower() in _DISABLED or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            found.append(
                AptSource(
                    uri=uri,
                    suites=tuple(fields.get("suites", "").split()),
                    components=tuple(fields.get("components", "").split()),
                    signed_by=fields.get("signed-by") or None,
                )
            )
    return found


def parse_one_line(text: str) -> list[AptSource]:
    """The archives of a ``.list`` file: ``deb [options] uri suite component…``."""
    found = []
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.split("#", 1)[0].strip())
        if match is None:
            continue
        words = match["rest"].split()
        if len(words) < 3:  # a flat archive has no components: not Debian's
            continue
        options = dict(
            option.partition("=")[::2] for option in (match["options"] or "").split() if "=" in option
        )
        found.append(
            AptSource(
                uri=words[0],
                suites=(words[1],),
                components=tuple(words[2:]),
                signed_by=options.get("signed-by"),
            )
        )
    return found


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Fields of each paragraph, names in lower case; a comment may stand between two fields."""
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.rstrip()
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
        else:
            name = ""
