"""The verbs on bases; cli/bases.py carries them out."""

import argparse

from waypoint.cli.grammar.new_session import add_new_session
from waypoint.cli.grammar.verbs import Verb, Verbs

__all__ = ["add_verbs"]


_ACTIONS = (
    ("list", "list the bases in the pool", ()),
    (
        "bootstrap",
        "make a Debian base from this host's package mirror; FROM in a Dockerfile then finds it",
        (
            "waypoint base bootstrap debian:bookworm",
            "waypoint base bootstrap debian:bookworm --include python3,python3-pip --name python:3.11",
        ),
    ),
    (
        "import",
        "make a base from a tar archive, a directory or an image",
        (
            "waypoint base import rootfs.tar.gz --name tools:1",
            "waypoint base import docker-archive:saved.tar --name tools:1",
            "waypoint base import docker://debian:bookworm",
        ),
    ),
    (
        "export",
        "write the files of a base as a tar archive; import reads it back as the same base",
        (
            "waypoint base export debian:bookworm debian.tar",
            "waypoint base export tools - | zstd >tools.tar.zst",
        ),
    ),
    (
        "rm",
        "remove bases that no session uses, or a name of one that has others",
        ("waypoint base rm debian:bookworm",),
    ),
    (
        "prune",
        "remove bases that have neither a name nor a session, and build steps that nothing needs any more",
        (),
    ),
)


def add_verbs(verbs: Verbs) -> None:
    build = verbs.add(
        Verb("build", "bases", "build"),
        "build a Dockerfile, store the image as a base, and create a session on it",
        "waypoint build ./app --name demo",
        "waypoint build . -f docker/Dockerfile --build-arg VERSION=3",
    )
    _add_build_options(build)
    add_new_session(build, chooses_base=False)
    build.add_argument("--size", metavar="CxR", help="columns x rows of its terminal (default 120x40)")
    base = verbs.add(Verb("base", "bases", "base_list"), "list, make, import, export or remove bases")
    actions = verbs.actions(base)
    for action, about, examples in _ACTIONS:
        verb = Verb(f"base {action}", "bases", f"base_{action}")
        _add_base_action(action, actions.add(verb, about, *examples))


def _add_build_options(build: argparse.ArgumentParser) -> None:
    build.add_argument("context", metavar="DIR", help="the directory that COPY and ADD take files from")
    build.add_argument("--file", "-f", metavar="FILE", help="the Dockerfile (default: DIR/Dockerfile)")
    build.add_argument(
        "--build-arg",
        action="append",
        metavar="K[=V]",
        help="a value for ARG in the Dockerfile (without =V: the value of your variable K); may be repeated",
    )
    build.add_argument(
        "--tag", "-t", action="append", metavar="BASE", help="a name for the base (default: localhost/DIR)"
    )
    build.add_argument(
        "--workdir", metavar="PATH", help="where the shell starts (default: the image's WORKDIR)"
    )


def _add_base_action(action: str, parser: argparse.ArgumentParser) -> None:
    if action == "bootstrap":
        parser.add_argument("release", metavar="debian:RELEASE", help="such as debian:bookworm")
        parser.add_argument(
            "--include",
            action="append",
            metavar="PKG[,PKG…]",
            help="packages to install in it; may be repeated",
        )
        _add_names(parser, "debian:RELEASE")
    elif action == "import":
        parser.add_argument("source", metavar="TAR|DIR|IMAGE", help="what to make the base from")
        _add_names(parser, "that of the image, if it is from a registry")
    elif action == "export":
        parser.add_argument("base", metavar="BASE", help="its name or id")
        parser.add_argument("file", metavar="FILE|-", help="where to write it; - is standard output")
    elif action == "rm":
        parser.add_argument("bases", nargs="+", metavar="BASE", help="names or ids")


def _add_names(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--name",
        action="append",
        metavar="N",
        help=f"a name, as after FROM in a Dockerfile (default: {default}); may be repeated",
    )
