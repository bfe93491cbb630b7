"""Turn the configuration of an image into settings of a session over it. What the user says takes precedence."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

from waypoint.errors import NotFound, UsageError
from waypoint.kernel.copy.confined import directory_root, reopened
from waypoint.model import ImageConfig, SessionSettings
from waypoint.shell.profile import SESSION_ENV, UNATTENDED_ENV
from waypoint.shell.selection import find_profile

__all__ = ["COMMAND_VARIABLE", "image_command", "with_image"]

COMMAND_VARIABLE = "WAYPOINT_IMAGE_COMMAND"
"""In a session over an image: ENTRYPOINT and CMD as text for a shell. They are not run by themselves."""

_OWN_PROGRAMS = SESSION_ENV["PATH"].rpartition(":")[2]
_GROUPS_BYTES_MAX = 1 << 20


def with_image(settings: SessionSettings, config: ImageConfig, root: Path) -> SessionSettings:
    """The settings of a session over the image at ``root``."""
    image = dict(config.env)
    if not settings.attended:  # programs must not wait for a person, whatever the image wants
        image = {name: value for name, value in image.items() if name not in UNATTENDED_ENV}
    if image.get("PATH"):
        image["PATH"] = f"{image['PATH']}:{_OWN_PROGRAMS}"
    command = image_command(config)
    if command:
        image[COMMAND_VARIABLE] = command
    return replace(
        settings,
        env={**image, **settings.env},
        shell=settings.shell or _known_shell(config, root),
        user=settings.user or _user_with_group_number(config.user, root),
    )


def image_command(config: ImageConfig) -> str:
    return shlex.join((*config.entrypoint, *config.cmd))


def _known_shell(config: ImageConfig, root: Path) -> str | None:
    """The shell that the image's SHELL names, if it is one that can be a terminal's."""
    if not config.shell:
        return None
    try:
        find_profile(root, config.shell[0])
    except (NotFound, UsageError):
        return None
    return config.shell[0]


def _user_with_group_number(user: str | None, root: Path) -> str | None:
    """``USER name:group`` with the group's number, as the image's own /etc/group has it."""
    name, colon, group = (user or "").partition(":")
    if not colon or group.isdigit():
        return user
    for line in _groups(root):
        fields = line.split(":")
        if fields[0] == group and len(fields) > 2:
            return f"{name}:{fields[2]}"
    raise NotFound("group", group, hint=f"the image says USER {user}: give another with --user")


def _groups(root: Path) -> list[str]:
    try:
        with (
            directory_root(root) as top,
            top.found("/etc/group", follow=True) as found,
            reopened(found, os.O_RDONLY | os.O_NONBLOCK) as fd,
        ):
            return os.read(fd, _GROUPS_BYTES_MAX).decode(errors="replace").splitlines()
    except OSError:  # a base may have no groups
        return []
