"""Create a session from the options of a verb; every verb that creates one uses this."""

import argparse
import os
import sys

from waypoint.cli.build_progress import bases_of, build_progress
from waypoint.cli.commands import parse_env
from waypoint.cli.host import parse_size as parse_bytes
from waypoint.errors import UsageError
from waypoint.model import Allowed, Limits, Network, NetworkMode, Secret, Volume, Walls
from waypoint.names import parse_name
from waypoint.session.creation.wall_choice import PRIVILEGED_WARNING
from waypoint.session.session import Session
from waypoint.session.waypoint import Waypoint
from waypoint.shell.terminal import WindowSize

__all__ = ["create_session"]


def create_session(
    waypoint: Waypoint,
    options: argparse.Namespace,
    *,
    size: WindowSize | None = None,
    attended: bool = False,
) -> Session:
    """Create the session that the options ask for."""
    base = _chosen_base(waypoint, options)
    session = waypoint.create(
        os.getcwd() if options.directory is None and base in (None, "host") else options.directory,
        base=base,
        name=options.name,
        size=size,
        env=parse_env(options.env),
        shell=options.shell or None,
        allow_self=options.allow_self,
        attended=attended,
        user=options.user,
        network=_network(options.net, options.allow),
        limits=Limits(
            memory_bytes=None if options.memory is None else parse_bytes(options.memory),
            cpus=options.cpus,
            pids=options.pids,
            disk_bytes=None if options.disk is None else parse_bytes(options.disk),
        ),
        walls=Walls(
            privileged=options.privileged,
            no_new_privs=options.no_new_privs,
            read_only_base=options.read_only_base,
        ),
        volumes=[_volume(text) for text in options.volume or ()],
        secrets=[_secret(text) for text in options.secret or ()],
        hide=options.hide or (),
        show=options.show or (),
        work_dir=options.work_dir,
    )
    if options.privileged:
        print(f"waypoint: warning: {PRIVILEGED_WARNING}", file=sys.stderr)
    return session


def _chosen_base(waypoint: Waypoint, options: argparse.Namespace) -> str | None:
    """The base for a new session; with --from-image, fetch the image first."""
    if options.from_image is None:
        chosen: str | None = options.base
        return chosen
    with build_progress(options) as show:
        return bases_of(waypoint).pull(options.from_image, on_output=show).id


def _network(mode: str | None, allow: list[str] | None) -> Network | None:
    """The network that was asked for; None means the default of this host."""
    if allow is None:
        return None if mode is None else Network(mode=NetworkMode(mode))
    if mode not in (None, NetworkMode.NAT):
        raise UsageError(
            f"--allow applies to --net nat, not to --net {mode}", hint="leave out one of the two"
        )
    return Network(mode=NetworkMode.NAT, allowed=tuple(_allowed(text) for text in allow))


def _allowed(text: str) -> Allowed:
    host, colon, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    if not host or (colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)):
        raise UsageError(f"{text!r} is not HOST[:PORT]", hint="such as pypi.org:443 or 192.0.2.7")
    return Allowed(host=host, port=int(port) if colon else None)


def _volume(text: str) -> Volume:
    source, _, rest = text.partition(":")
    path, colon, mode = rest.partition(":")
    if not source or not path or (colon and mode not in ("ro", "rw")):
        raise UsageError(f"{text!r} is not HOST:PATH or HOST:PATH:ro", hint="such as /srv/data:/data:ro")
    return Volume(source=os.path.abspath(source), path=path, read_only=mode == "ro")


def _secret(text: str) -> Secret:
    name, equals, source = text.partition("=")
    if not equals or not source:
        raise UsageError(f"{text!r} is not NAME=FILE", hint="such as token=/home/me/token")
    return Secret(name=parse_name("secret", name), source=os.path.abspath(source))
