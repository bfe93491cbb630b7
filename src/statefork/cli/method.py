"""The options that choose a method, and what they mean."""

import argparse
import json

from statefork.errors import WrongUse
from statefork.factory import METHODS

__all__ = ["add_method_options", "given_options", "method_name"]


def add_method_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", help="the directory with the Dockerfile")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the method, JSON or text; may be repeated",
    )


def method_name(text: str) -> str:
    """``docker`` is short for ``docker_build``."""
    built = f"{text}_build"
    return built if built in METHODS else text


def given_options(options: argparse.Namespace) -> dict[str, object]:
    """The arguments of create_env_manager() that the command line gives."""
    given: dict[str, object] = dict(_option(text) for text in options.option)
    directory = options.dir or getattr(options, "directory", None)
    if directory is not None:
        given["dockerfile_dir"] = directory
    if getattr(options, "build", None) is not None:
        given["build"] = options.build
    if options.state_dir is not None:
        given["state_dir"] = options.state_dir
    return given


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise WrongUse(f"{text!r} is not NAME=VALUE", hint="such as --option container_name=web")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    # A name may look like a number: containers are called 12e45678, sessions 7451234567890123.
    is_number = isinstance(parsed, int | float) and not isinstance(parsed, bool)
    return name, value if is_number else parsed
