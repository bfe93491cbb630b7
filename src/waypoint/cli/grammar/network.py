"""The verbs on exposed ports."""

from waypoint.cli.grammar.options import add_target
from waypoint.cli.grammar.verbs import Verb, Verbs

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    expose = verbs.add(
        Verb("expose", "network", "expose"),
        "forward a port of this host's loopback to a TCP port of a branch, also after restores",
        "waypoint expose demo 8000",
        "waypoint expose demo:fork-1 8000 --host-port 8001",
    )
    add_target(expose, waits=False)
    expose.add_argument(
        "port", type=int, metavar="PORT", help="the port on which the server in the branch listens"
    )
    expose.add_argument(
        "--host-port",
        type=int,
        metavar="P",
        help="the port of this host (default: the same number if it is free, else any free one)",
    )
    unexpose = verbs.add(Verb("unexpose", "network", "unexpose"), "stop forwarding to a port of a branch")
    add_target(unexpose, waits=False)
    unexpose.add_argument("port", type=int, metavar="PORT", help="the port in the branch")
    ports = verbs.add(
        Verb("ports", "network", "ports"),
        "list exposed ports, and whether something listens there",
    )
    ports.add_argument("session", nargs="?", metavar="SESSION")
