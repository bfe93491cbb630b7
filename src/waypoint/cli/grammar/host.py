"""The verbs on the host itself."""

from waypoint.cli.grammar.verbs import Verb, Verbs

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    setup = verbs.add(
        Verb("setup", "host", "setup", on_host=True),
        "prepare this host: find or install CRIU, let it examine the kernel, create the pool",
        "waypoint setup --pool-size 20G",
    )
    setup.add_argument("--pool-size", metavar="S", help="size of a new pool's file, such as 20G")
    verbs.add(
        Verb("doctor", "host", "doctor", on_host=True),
        "show what this host can do, what is missing and how to get it",
    )
    pool = verbs.add(Verb("pool", "host", "pool_status", on_host=True), "show, grow or unmount the pool")
    actions = verbs.actions(pool)
    for name, about in (
        ("status", "show the kind of the pool and how full it is"),
        ("resize", "grow the pool, also while it is in use"),
        ("unmount", "unmount the pool if no branch runs; the next command mounts it again"),
    ):
        action = actions.add(Verb(f"pool {name}", "host", f"pool_{name}", on_host=True), about)
        if name == "unmount":
            action.add_argument(
                "--if-idle",
                action="store_true",
                help="if the pool is in use, leave it mounted without an error",
            )
        if name == "resize":
            action.add_argument("size", metavar="SIZE", help="the new size, such as 40G")
    info = verbs.add(
        Verb("info", "info", "info", on_host=True),
        "show all about the system and its settings, a session or a checkpoint, as JSON",
        "waypoint info",
        "waypoint info demo ready",
    )
    info.add_argument("session", nargs="?", metavar="SESSION")
    info.add_argument("name", nargs="?", metavar="NAME", help="a checkpoint of the session")
    completion = verbs.add(
        Verb("completion", "completion", "completion", on_host=True),
        "print the completion script for a shell",
        'eval "$(waypoint completion bash)"',
        "waypoint completion fish >~/.config/fish/completions/waypoint.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    verbs.add(Verb("version", "host", "version", on_host=True), "print the version")
