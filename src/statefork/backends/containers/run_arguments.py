"""The published option ``extra_args``: the few arguments of ``docker run`` that a sandbox understands."""

import getopt
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statefork.errors import WrongUse

__all__ = ["RunArguments", "Volume", "as_words", "parse_run_arguments"]


@dataclass(frozen=True, slots=True)
class Volume:
    """A file or directory of the host that is shared with the instance; it is no part of its snapshots."""

    source: Path
    target: str
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    volumes: tuple[Volume, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None


def as_words(value: str | Sequence[str] | None) -> list[str]:
    """A list of words as it is, a text as a shell would split it."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise WrongUse(f"{value!r}: {error}") from error
    return list(value or ())


def parse_run_arguments(words: str | Sequence[str]) -> RunArguments:
    """Parse ``extra_args``. Raises WrongUse for what has no meaning here, such as a published port."""
    try:
        options, rest = getopt.getopt(as_words(words), "v:e:w:", ["volume=", "env=", "workdir="])
    except getopt.GetoptError as error:
        raise WrongUse(f"extra_args: {error}", hint="known are -v, -e and -w") from error
    if rest:
        raise WrongUse(f"extra_args: {rest[0]!r} is not an option", hint="known are -v, -e and -w")
    volumes, env, workdir = [], {}, None
    for option, value in options:
        if option in ("-v", "--volume"):
            volumes.append(_volume(value))
        elif option in ("-e", "--env"):
            name, _, text = value.partition("=")
            env[name] = text
        else:
            workdir = value
    return RunArguments(volumes=tuple(volumes), env=env, workdir=workdir)


def _volume(text: str) -> Volume:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise WrongUse(f"extra_args: volume {text!r}", hint="/HOST/PATH:/PATH or /HOST/PATH:/PATH:ro")
    return Volume(Path(source), target, mode == "ro")
