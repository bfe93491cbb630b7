"""The ports of the host in an engine's arguments. Only one container can have each, so only ``main`` gets them."""

from collections.abc import Iterator, Sequence

__all__ = ["published", "takes_host_ports", "without_host_ports"]

_OPTIONS = ("-p", "--publish")


def takes_host_ports(arguments: Sequence[str]) -> bool:
    return any(_without_host_port(value) != value for value in published(arguments))


def published(arguments: Sequence[str]) -> list[str]:
    """The values of all options that publish a port."""
    return [value for _, value in _parsed(arguments) if value is not None]


def without_host_ports(arguments: Sequence[str]) -> list[str]:
    """The same arguments, with the engine free to choose a port of the host for each that is published."""
    return [
        option if value is None else f"{option}{_without_host_port(value)}"
        for option, value in _parsed(arguments)
    ]


def _parsed(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each argument, split into its beginning and the port that it publishes; None if it publishes none."""
    is_value = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if is_value:
            yield "", argument
        elif option in _OPTIONS and equals:
            yield f"{option}=", value
        elif argument.startswith("-p") and len(argument) > 2:
            yield "-p", argument[2:]
        else:
            yield argument, None
        is_value = not is_value and argument in _OPTIONS


def _without_host_port(published: str) -> str:
    """``[ADDRESS:]HOST:CONTAINER[/PROTOCOL]`` without HOST; the address may be IPv6, in brackets."""
    rest, colon, container = published.rpartition(":")
    if not colon:
        return published
    address, colon, _host = rest.rpartition(":")
    return f"{address}::{container}" if colon else container
