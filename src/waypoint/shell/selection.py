"""Find the shell of a base, and how it is started.

A base is not trusted. Its links are followed as they will be when the shell is started there: below its own
root, never on the host.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import NotFound, UsageError
from waypoint.shell.profile import ASH, BASH, DASH, ZSH, ShellProfile

__all__ = ["SHELL_NAMES", "find_profile"]

_PROFILES: Mapping[str, ShellProfile] = {shell.name: shell for shell in (BASH, ZSH, DASH, ASH)}
_DIRECTORIES = ("/bin", "/usr/bin", "/usr/local/bin")
SHELL_NAMES = (*_PROFILES, "sh")
"""What can be asked for by name; the first that a base has is its default."""

_PROGRAM = re.compile(rf"({'|'.join(_PROFILES)})(-static)?[-.0-9]*")  # zsh5, bash-static, zsh-5.9
_BUSYBOX_SHELLS = frozenset({"ash", "sh", "bash"})  # the last in builds that say so
_BUSYBOX_MARK, _BUSYBOX_BYTES_MAX = b"BusyBox v", 8 << 20
_LINKS_MAX = 40


def find_profile(root: Path, wanted: str | None) -> ShellProfile:
    """How to start the shell ``wanted`` (a name, or an absolute path), or the best that ``root`` has.

    Raises NotFound, which names what was looked for, or UsageError for a program that is not a known shell.
    """
    candidates = _candidates(wanted)
    unknown = ""
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in candidates:
            with _find_program(root_fd, path) as program:
                if program is None:
                    continue
                profile = _profile_of(root_fd, program)
            if profile is not None:
                return profile
            unknown = unknown or path
    finally:
        os.close(root_fd)
    if unknown:
        hint = f"shells are known by the name of the program: {_listed(_PROFILES)}"
        raise UsageError(f"cannot tell what kind of shell {unknown} is", hint=hint)
    hint = f"the base has none of {_listed(candidates)}"
    raise NotFound("shell", SHELL_NAMES[-1] if wanted is None else wanted, hint=hint)


def _candidates(wanted: str | None) -> list[str]:
    if wanted is None:
        return [path for name in SHELL_NAMES for path in _candidates(name)]
    if wanted.startswith("/") and "\0" not in wanted:
        return [wanted]
    if wanted not in SHELL_NAMES:
        raise UsageError(
            f"unknown shell {wanted!r}",
            hint=f"use {_listed(SHELL_NAMES)}, or the path of a shell in the base",
        )
    programs = ("ash", "busybox") if wanted == ASH.name else (wanted,)
    return [f"{directory}/{program}" for program in programs for directory in _DIRECTORIES]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A program of the base: where it was looked for, where it really is, and an open descriptor of it."""

    path: str
    target: str
    fd: int

    def is_same_file(self, other: "_Program") -> bool:
        return os.path.sameopenfile(self.fd, other.fd)

    def is_busybox(self) -> bool:
        """Whether its name says so or, since a copy or a hard link may have any name, its content does."""
        if os.path.basename(self.target).startswith("busybox"):
            return True
        with open(f"/proc/self/fd/{self.fd}", "rb") as content:
            return _BUSYBOX_MARK in content.read(_BUSYBOX_BYTES_MAX)


def _profile_of(root_fd: int, program: _Program) -> ShellProfile | None:
    """The shell that ``program`` is, by the name of the file its links lead to; None if that is not a known shell."""
    kind = _kind(program.target)
    if kind is not None:
        # Started under another name, such as sh, it would behave differently.
        return kind.at(program.path if _kind(program.path) is kind else program.target)
    if program.is_busybox():
        if os.path.basename(program.path) in _BUSYBOX_SHELLS:
            return ASH.at(program.path)
        return ASH.at(program.path, "ash")
    return _hard_linked_shell(root_fd, program)


def _hard_linked_shell(root_fd: int, program: _Program) -> ShellProfile | None:
    """The shell of which a program with a name that says nothing (``sh``) is a hard link."""
    for name, profile in _PROFILES.items():
        for directory in _DIRECTORIES:
            with _find_program(root_fd, f"{directory}/{name}") as known:
                if known is not None and known.is_same_file(program):
                    return profile.at(known.path)
    return None


def _kind(path: str) -> ShellProfile | None:
    match = _PROGRAM.fullmatch(os.path.basename(path))
    return None if match is None else _PROFILES[match[1]]


@contextmanager
def _find_program(root_fd: int, path: str) -> Iterator[_Program | None]:
    """The program that ``path`` means to a process whose root directory is ``root_fd``, if there is one."""
    program = None
    with ExitStack() as opened:
        with suppress(OSError):
            target, fd = _walk(root_fd, path, opened)
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode) and mode & 0o111:
                program = _Program(path=path, target=target, fd=fd)
        yield program


def _walk(root_fd: int, path: str, opened: ExitStack) -> tuple[str, int]:
    """Follow ``path`` name by name; no step leaves the root, even if files are exchanged meanwhile.

    Returns where it really is and a descriptor, which ``opened`` closes.
    """
    trail: list[tuple[str, int]] = []
    left = path.split("/")[::-1]
    links = 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del trail[-1:]
            continue
        fd = os.open(
            name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=trail[-1][1] if trail else root_fd
        )
        opened.callback(os.close, fd)
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            trail.append((name, fd))
            continue
        links += 1
        if links > _LINKS_MAX:
            raise OSError(f"too many links on the way to {path}")
        link = os.readlink("", dir_fd=fd)
        if link.startswith("/"):
            trail.clear()
        left += link.split("/")[::-1]
    return "/" + "/".join(name for name, _ in trail), trail[-1][1] if trail else root_fd
