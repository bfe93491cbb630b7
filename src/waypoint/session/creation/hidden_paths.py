"""Host paths hidden from a session over the host's root: a default list, and what the user adds or takes away.

A pattern is a path of the host, which may have wildcards such as ``*`` in it; ``~`` is every home. It is expanded to
paths once, when the session is created; :mod:`waypoint.engine.whiteouts` hides those.
"""

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waypoint.config import config_files, configured_list, read_config
from waypoint.engine.whiteouts import outermost
from waypoint.errors import UsageError
from waypoint.kernel.storage.mounts import MountEntry, read_mounts
from waypoint.model import Base, BaseKind
from waypoint.store.layout import Layout

__all__ = ["DEFAULT_HIDDEN", "Home", "choose_hidden", "expand", "find_homes", "without_hidden_mounts"]

# docs/sharing.md has the same table; a test compares them.
DEFAULT_HIDDEN: Mapping[str, tuple[str, ...]] = {
    "keys and password stores": (
        *("~/.ssh", "~/.gnupg", "~/.password-store", "~/.vault-token", "~/.config/op", "~/.config/sops"),
        "~/.local/share/keyrings",
    ),
    "clouds and clusters": (
        *("~/.aws", "~/.azure", "~/.config/gcloud", "~/.boto", "~/.s3cfg", "~/.config/rclone", "~/.oci"),
        *("~/.config/doctl", "~/.kube", "~/.terraform.d/credentials.tfrc.json"),
    ),
    "registries and code hosts": (
        *("~/.netrc", "~/.git-credentials", "~/.config/git/credentials", "~/.config/gh", "~/.config/hub"),
        *("~/.config/glab-cli", "~/.docker", "~/.config/containers/auth.json", "~/.pypirc", "~/.npmrc"),
        *("~/.cargo/credentials", "~/.cargo/credentials.toml", "~/.gem/credentials"),
        *("~/.composer/auth.json", "~/.config/composer/auth.json"),
    ),
    "agents": (
        *("~/.claude", "~/.claude.json*", "~/.codex", "~/.gemini", "~/.config/anthropic"),
        *("~/.config/openai", "~/.config/github-copilot", "~/.huggingface", "~/.cache/huggingface/token"),
    ),
    "browsers and mail": (
        *("~/.mozilla", "~/.thunderbird", "~/.config/google-chrome*", "~/.config/chromium"),
        *("~/.config/microsoft-edge*", "~/.config/BraveSoftware", "/var/mail", "/var/spool/mail"),
    ),
    "histories": ("~/.*_history*", "~/.local/share/fish/fish_history", "~/.viminfo"),
    "the host's own": (
        *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssh/ssh_host_*_key"),
        *("/etc/ssl/private", "/etc/letsencrypt", "/etc/krb5.keytab", "/etc/wireguard"),
        *("/etc/NetworkManager/system-connections", "/etc/credstore*", "/var/lib/systemd/credential.secret"),
        *("/etc/kubernetes", "/etc/rancher", "/var/lib/kubelet", "/var/lib/rancher", "/var/spool/cron"),
    ),
    "other containers and sessions": (
        *("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "~/.local/share/containers"),
        "/var/lib/waypoint*",
    ),
}

_OWN_TREES = ("/proc", "/sys", "/dev", "/run", "/.waypoint")  # a branch has its own
_FIRST_UID_OF_PEOPLE, _NOBODY = 1000, 65534


@dataclass(frozen=True, slots=True)
class Home:
    """A home directory. In that of a person, paths are hidden also before they exist."""

    path: str
    is_of_a_person: bool


def choose_hidden(
    base: Base,
    workspace: str,
    *,
    state_dir: str,
    hide: Sequence[str],
    show: Sequence[str],
    environ: Mapping[str, str],
    files: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths to hide from a session, and existing ones that are shown although they would be hidden by default.

    The configuration file changes the default list; ``hide`` and then ``show`` change that. The directory in which
    the session starts is shown. The state directory is always hidden, so it is not among the paths; other paths at
    which it can be seen are. Raises UsageError on what cannot be hidden or shown.
    """
    if base.kind is not BaseKind.HOST:
        if hide or show:
            raise UsageError(
                "only paths of the host's root can be hidden or shown, and the base is another",
                hint="leave it out: the session sees nothing of the host but its base",
            )
        return (), ()
    homes = find_homes(environ)
    mounts = {mount.path: mount for mount in read_mounts()}
    stored = read_config(environ=environ, files=config_files(environ) if files is None else files)
    listed = [*_defaults(), *configured_list(stored, "hide")]
    paths = expand(listed, homes) | {state for mount in mounts.values() for state in _state_directory(mount)}
    paths.discard(state_dir)
    spared = _below(paths, expand(configured_list(stored, "show"), homes))
    asked, shown = _asked_for(hide, homes), expand(show, homes)
    paths, spared = paths - spared | asked, spared - asked
    spared |= _below(paths, shown) | {path for path in paths if _is_below(workspace, path)}
    _require_whole(shown, paths - spared)
    paths = {_first_missing(path) for path in paths - spared}
    own = {state_dir, os.fspath(Layout(Path(state_dir)).pool)}
    paths |= {alias for path in paths | own for alias in _aliases(path, mounts)}
    seen = (path for path in paths if _is_seen(path, base, mounts))
    return tuple(outermost(seen)), tuple(sorted(filter(os.path.lexists, spared)))


def without_hidden_mounts(base: Base, hidden: Iterable[str]) -> Base:
    """The base without the file systems that are mounted at or below hidden paths."""
    unseen = _below((extra.path for extra in base.extra_mounts), hidden)
    return replace(base, extra_mounts=tuple(extra for extra in base.extra_mounts if extra.path not in unseen))


def find_homes(environ: Mapping[str, str], passwd: Path = Path("/etc/passwd")) -> list[Home]:
    """Every home of the host: those of its users, those in /home, and the caller's."""
    found: dict[str, bool] = {"/root": True}
    for line in passwd.read_text(errors="surrogateescape").splitlines() if passwd.exists() else ():
        fields = line.split(":")
        if len(fields) == 7 and fields[2].isdigit():
            uid = int(fields[2])
            is_person = uid == 0 or (uid >= _FIRST_UID_OF_PEOPLE and uid != _NOBODY)
            found[fields[5]] = found.get(fields[5], False) or is_person
    caller = (environ.get("HOME", ""), f"/home/{environ.get('SUDO_USER', '')}")
    found.update((path, True) for path in (*glob.glob("/home/*"), *caller))
    homes: dict[str, bool] = {}
    for path, is_person in found.items():
        real = os.path.realpath(path)
        is_home = path.startswith("/") and real not in ("/", "/home") and not _is_below(real, "/usr")
        if is_home and os.path.isdir(real):
            homes[real] = homes.get(real, False) or is_person
    return [Home(path, is_person) for path, is_person in homes.items()]


def expand(patterns: Iterable[str], homes: Sequence[Home]) -> set[str]:
    """The paths, with links resolved, that match the patterns and that exist or may come to exist.

    In a person's home any path may come to exist; elsewhere, one in an existing directory. Raises UsageError on what is
    not a pattern.
    """
    return {
        _without_links(path)
        for pattern in patterns
        for directory, rest, may_appear in _starts(pattern, homes)
        for path in _matches(directory, rest)
        if os.path.lexists(path)
        or (may_appear and (directory != "/" or os.path.isdir(os.path.dirname(path))))
    }


def _defaults() -> Iterable[str]:
    return (pattern for patterns in DEFAULT_HIDDEN.values() for pattern in patterns)


def _starts(pattern: str, homes: Sequence[Home]) -> Iterable[tuple[str, str, bool]]:
    """The directories that a pattern starts at, the rest of it, and whether it also matches paths that do not exist."""
    if pattern == "~" or pattern.startswith("~/"):
        return ((home.path, pattern[2:], home.is_of_a_person) for home in homes)
    if not pattern.startswith("/") or ".." in pattern.split("/") or "\0" in pattern:
        raise UsageError(
            f"{pattern!a} is not a path to hide or show",
            hint="write /PATH, or ~/PATH for every home; no '..'",
        )
    return (("/", pattern.strip("/"), True),)


def _matches(directory: str, pattern: str) -> Iterable[str]:
    names = (
        glob.glob(pattern, root_dir=directory, include_hidden=True) if glob.has_magic(pattern) else [pattern]
    )
    return (os.path.join(directory, name).rstrip("/") or "/" for name in names)


def _first_missing(path: str) -> str:
    """The path to hide so that ``path`` is hidden: itself, or the first directory on the way that does not exist."""
    while not os.path.lexists(path) and not os.path.lexists(os.path.dirname(path)):
        path = os.path.dirname(path)
    return path


def _without_links(path: str) -> str:
    """The path without links. A last link to what another user owns is kept: else its owner could hide anything."""
    link = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    target = os.path.realpath(link)
    try:
        is_own = os.lstat(link).st_uid == os.stat(target).st_uid
    except OSError:  # it does not exist, or no longer: shells and editors replace such files all the time
        is_own = False
    return target if is_own else link


def _asked_for(patterns: Sequence[str], homes: Sequence[Home]) -> set[str]:
    asked: set[str] = set()
    for pattern in patterns:
        found = expand([pattern], homes)
        if not found or "/" in found:
            raise UsageError(
                f"cannot hide {pattern!r}: {'it is the whole root' if found else 'nothing can exist there'}",
                hint="name a file or directory of the host",
            )
        asked |= found
    return asked


def _require_whole(shown: Iterable[str], hidden: Iterable[str]) -> None:
    for path in shown:
        for other in hidden:
            if _is_below(path, other):
                raise UsageError(
                    f"cannot show {path}: {other} is hidden as a whole",
                    hint=f"show all of it: --show {other}",
                )


def _state_directory(mount: MountEntry) -> Iterable[str]:
    """The state directory that a mounted pool belongs to."""
    parent = os.path.dirname(mount.path)
    return (parent,) if os.path.exists(os.path.join(parent, "pool.json")) else ()


def _aliases(path: str, mounts: Mapping[str, MountEntry]) -> Iterable[str]:
    """Where else a path can be seen, because its part of a file system is mounted more than once."""
    own = _mount_of(path, mounts)
    inside = os.path.join(own.root, os.path.relpath(path, own.path)).removesuffix("/.") or "/"
    for other in mounts.values():
        if other is not own and other.device == own.device and _is_below(inside, other.root):
            alias = os.path.join(other.path, os.path.relpath(inside, other.root)).removesuffix("/.")
            if _mount_of(alias, mounts) is other and os.path.lexists(alias):
                yield alias


def _is_seen(path: str, base: Base, mounts: Mapping[str, MountEntry]) -> bool:
    """Whether a session would see a path of the host at all."""
    if path == "/" or any(_is_below(path, tree) for tree in _OWN_TREES):
        return False
    mount = _mount_of(path, mounts).path
    return mount == "/" or any(mount == extra.path for extra in base.extra_mounts)


def _mount_of(path: str, mounts: Mapping[str, MountEntry]) -> MountEntry:
    while path not in mounts:
        path = os.path.dirname(path)
    return mounts[path]


def _below(paths: Iterable[str], directories: Iterable[str]) -> set[str]:
    tops = tuple(directories)
    return {path for path in paths if any(_is_below(path, top) for top in tops)}


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
