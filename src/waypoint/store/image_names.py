"""Names of bases: references as Dockerfiles write them after ``FROM``.

The catalogue and the image store keep the full form (``docker.io/library/debian:bookworm``), so that all ways to
write a name mean one base; people are shown the short one (``debian:bookworm``).
"""

import re

from waypoint.errors import UsageError

__all__ = ["full_name", "is_full_name", "local_name", "short_name"]

_REGISTRY, _LIBRARY, _LOCAL, _TAG = "docker.io", "library", "localhost", "latest"
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?")
_PART = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")
_TAG_TEXT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LENGTH_MAX = 255
_NOT_IN_A_PART = re.compile(r"[^a-z0-9]+")
_RESERVED = frozenset({"host"})  # --base host is the host's own root


def full_name(text: str) -> str:
    """The full form of a name. Raises UsageError for what cannot be one."""
    repository, colon, tag = _split_tag(text)
    domain, slash, path = repository.partition("/")
    if not slash or not (set(".:") & set(domain) or domain == _LOCAL):
        domain, path = _REGISTRY, repository
    if domain == _REGISTRY and "/" not in path:
        path = f"{_LIBRARY}/{path}"
    is_name = (
        len(text) <= _LENGTH_MAX
        and _DOMAIN.fullmatch(domain)
        and all(_PART.fullmatch(part) for part in path.split("/"))
        and (not colon or _TAG_TEXT.fullmatch(tag))
        and text not in _RESERVED
    )
    if not is_name:
        raise UsageError(
            f"{text!r} cannot be the name of a base",
            hint="write it as after FROM in a Dockerfile: debian:bookworm, python:3.11, example.org/team/tools",
        )
    return f"{domain}/{path}:{tag or _TAG}"


def is_full_name(text: str) -> bool:
    """Whether ``text`` can be a name at all."""
    try:
        full_name(text)
    except UsageError:
        return False
    return True


def short_name(name: str) -> str:
    """A full name as people write it."""
    for prefix in (f"{_REGISTRY}/{_LIBRARY}/", f"{_REGISTRY}/"):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    return name.removesuffix(f":{_TAG}")


def local_name(text: str) -> str:
    """A name for what was built here from a directory called ``text``; never one that a registry could have."""
    part = _NOT_IN_A_PART.sub("-", text.lower()).strip("-") or "base"
    return f"{_LOCAL}/{part}:{_TAG}"


def _split_tag(text: str) -> tuple[str, str, str]:
    """A colon after the last slash is before a tag; one ahead of it is before a port."""
    head, slash, last = text.rpartition("/")
    name, colon, tag = last.partition(":")
    return f"{head}{slash}{name}", colon, tag
