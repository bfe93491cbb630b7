"""The verbs that make, list and remove sessions."""

from waypoint.cli.grammar.new_session import add_new_session
from waypoint.cli.grammar.options import add_detach_key, add_target
from waypoint.cli.grammar.verbs import Verb, Verbs

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    init = verbs.add(
        Verb("init", "sessions", "init"),
        "create a session with a live branch 'main' and start its shell",
        "waypoint init ~/project --name demo",
        "waypoint init --base /srv/rootfs",
    )
    init.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="where the shell starts (default: here); the real DIR is never changed. A root file system becomes the base",
    )
    add_new_session(init)
    init.add_argument("--size", metavar="CxR", help="columns x rows of its terminal (default 120x40)")
    shell = verbs.add(
        Verb("shell", "shell", "shell"),
        "create a session, attach to it, and afterwards ask what to keep",
        "waypoint shell ~/project",
    )
    shell.add_argument("directory", nargs="?", metavar="DIR", help="where the shell starts (default: here)")
    add_new_session(shell)
    add_detach_key(shell)
    list_ = verbs.add(
        Verb("list", "listing", "list_"),
        "list sessions, or a session's checkpoints and branches",
    )
    list_.add_argument("session", nargs="?", metavar="SESSION")
    tree = verbs.add(Verb("tree", "listing", "tree"), "draw a session's checkpoints and branches")
    tree.add_argument("session", metavar="SESSION")
    destroy = verbs.add(
        Verb("destroy", "sessions", "destroy"),
        "end and remove a branch; its checkpoints stay",
        "waypoint destroy demo:fork-1",
    )
    add_target(destroy, may_be_main=False)
    suspend = verbs.add(
        Verb("suspend", "suspension", "suspend"),
        "suspend a session to disk: save and end all its branches; it also survives a reboot",
        "waypoint suspend demo",
        "waypoint suspend demo --drop   # back to the last checkpoints",
    )
    suspend.add_argument("session", metavar="SESSION")
    suspend.add_argument(
        "--drop",
        action="store_true",
        help="save nothing: what branches did since they were last saved is lost",
    )
    resume = verbs.add(
        Verb("resume", "suspension", "resume"),
        "resume a suspended session: every branch as it was saved, and its exposed ports",
        "waypoint resume demo",
    )
    resume.add_argument("session", metavar="SESSION")
    cleanup = verbs.add(
        Verb("cleanup", "sessions", "cleanup"), "remove a session with its branches and checkpoints"
    )
    cleanup.add_argument("session", metavar="SESSION")
    cleanup.add_argument(
        "--force", action="store_true", help="also end running commands, and wait for operations in progress"
    )
