"""The verb that copies files, and its rules."""

import argparse

from waypoint.cli.grammar.options import add_no_wait
from waypoint.cli.grammar.verbs import Verb, Verbs

__all__ = ["add_verbs"]


COPY_RULES = """
A path in a branch is SESSION[:BRANCH]:/PATH; everything else is a path on the host (write ./a:/b for a file
of such a name). Also accepted: cp SESSION SRC DST, with the branch's side as BRANCH:/PATH.

Missing directories are made. If the destination is a directory, a file goes into it and a directory is merged
into it; anything else is replaced in one step. A link at the destination is replaced, not followed; end the path
in / to follow a link to a directory. Contents and permission bits are kept, owners and times are not.
Links, devices, sockets and FIFOs are refused. A single - is a tar stream: from standard input it is unpacked
into the directory; to standard output the names in it begin with the last part of /PATH (with . for /PATH/.).
"""


def add_verbs(verbs: Verbs) -> None:
    cp = verbs.add(
        Verb("cp", "files", "cp"),
        "copy files into a branch or out of it",
        "waypoint cp ./app demo:/srv/app",
        "waypoint cp demo:fork-1:/srv/app/result.json .",
        "tar c . | waypoint cp - demo:/srv/app",
        "waypoint cp demo:/srv/app - | tar t",
    )
    cp.description = f"{cp.description}\n{COPY_RULES}".rstrip()
    cp.usage = "waypoint cp [options] SRC DST"
    for name in ("SRC", "DST"):  # one by one: a list of both would not let an option stand between them
        cp.add_argument("operands", action="append", metavar=name)
    cp.add_argument("operands", action="append", nargs="?", help=argparse.SUPPRESS)
    cp.add_argument("--links", action="store_true", help="copy symbolic links as links, and follow none")
    add_no_wait(cp)
