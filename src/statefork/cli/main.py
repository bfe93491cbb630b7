"""The program ``statefork``: parse, call one verb, turn an error into text and an exit code."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from statefork import __version__
from statefork.cli.answer import Answer, print_answer
from statefork.cli.method import add_method_options
from statefork.cli.setup import SETUPS, setup
from statefork.cli.verbs import (
    backends,
    cleanup,
    create,
    exec_,
    fork,
    list_,
    restore,
    shell,
    snapshot,
    stats,
    tree,
)
from statefork.errors import StateForkError, WrongUse

__all__ = ["main"]

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
EXIT_CODES = """\
exit codes:
  0 done   1 failure   2 wrong usage   124 a command ran out of time   130 interrupted
  exec ends with the command's own code
"""


def bench(options: argparse.Namespace) -> Answer:
    """Imported when it is called: it takes as long to load as all the rest."""
    from statefork.cli.bench import bench

    return bench(options)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    command = None
    if "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    options = _grammar().parse_args(words)
    if command is not None:
        options.command = command
    try:
        answer: Answer = options.verb(options)
    except StateForkError as error:
        code = EXIT_USAGE if isinstance(error, WrongUse) else EXIT_FAILURE
        return _fail(options, str(error), error.hint, code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print_answer(answer, as_json=options.json)
    return answer.exit_code


def _fail(options: argparse.Namespace, message: str, hint: str, code: int) -> int:
    if options.json:
        print(json.dumps({"error": {"message": message, "hint": hint}}, indent=2))
    else:
        print(f"statefork: error: {message}", file=sys.stderr)
        if hint:
            print(f"  hint: {hint}", file=sys.stderr)
    return code


def _grammar() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="statefork",
        description="One interface over every way to save and branch an environment.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"statefork version {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def add(verb: object, name: str, about: str, *examples: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog="\n  ".join(("examples:", *examples)) if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(verb=verb)
        made.add_argument("--json", action="store_true", help="print one JSON document")
        made.add_argument("--state-dir", type=Path, metavar="D", help="where environments are kept")
        return made

    listing = add(backends, "backends", "show what each backend keeps, and what is missing to use it here")
    listing.add_argument("--markdown", action="store_true", help="only the table, for documents")
    setup_ = add(
        setup,
        "setup",
        "download the tools of a backend where Debian's own are too old",
        "statefork setup gvisor",
    )
    setup_.add_argument("backend", choices=SETUPS)
    made = add(
        create,
        "create",
        "make an environment and print its id",
        "statefork create --method waypoint ./task",
        "statefork create --method waypoint --no-build .",
        "statefork create --method docker_attach --option container_name=web",
    )
    _add_method(made)
    made.add_argument("directory", nargs="?", metavar="DIR", help="the same as --dir")
    made.add_argument(
        "--build",
        action=argparse.BooleanOptionalAction,
        help="waypoint: build DIR's Dockerfile (the default), or start in DIR over the host's own files",
    )
    shell_ = add(
        shell,
        "shell",
        "make an environment and work in it by hand; it is cleaned up at the end",
        "statefork shell --method waypoint --dir ./task",
    )
    _add_method(shell_)
    shell_.add_argument(
        "--decider",
        default="always_true",
        choices=("always_true", "always_false", "random", "threshold", "smart"),
        help="when a snapshot is taken, and when only its commands are recorded",
    )
    shell_.add_argument("--threshold", type=float, default=5.0, metavar="SEC", help="for --decider threshold")
    bench_ = add(
        bench,
        "bench",
        "do the same work on several backends and compare",
        "statefork bench --methods waypoint,docker --workload kv --repeat 5",
        "statefork bench --workload memhog 200 --output results",
        "statefork bench --methods docker,podman,gvisor --private-docker --base rootfs.tar",
    )
    bench_.add_argument("--methods", metavar="M,M", help="which (default: all that can be used here)")
    bench_.add_argument(
        "--workload",
        nargs="+",
        default=["kv"],
        metavar="W",
        help="kv, logger, db, memhog MB, fsgen MB or bare",
    )
    bench_.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="how many times (default: %(default)s)"
    )
    bench_.add_argument(
        "--survival",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also look at what survives a restore (default: yes)",
    )
    bench_.add_argument(
        "--base",
        type=Path,
        metavar="PATH",
        help="a root directory or a tar archive to build from (default: a Debian, bootstrapped once)",
    )
    bench_.add_argument(
        "--private-docker",
        action="store_true",
        help="start a Docker daemon for this run only, on a socket and with data of its own",
    )
    bench_.add_argument(
        "--output", type=Path, metavar="DIR", help="write CSV, JSON, a table and a picture there"
    )
    add_method_options(bench_)
    add(list_, "list", "list the environments that were left open")
    for verb, name, about in (
        (exec_, "exec", "run a command in an environment and end with its exit code"),
        (snapshot, "snapshot", "save a branch and print the id of the snapshot"),
        (restore, "restore", "bring a branch back to a snapshot"),
        (fork, "fork", "start new branches from a snapshot"),
        (tree, "tree", "draw the snapshots and say where the branches are"),
        (stats, "stats", "show how long operations took and what snapshots take on disk"),
        (cleanup, "cleanup", "end an environment and remove all it has"),
    ):
        one = add(verb, name, about)
        one.add_argument("environment", metavar="ENV", help="the id that create printed")
        if name in ("exec", "snapshot", "restore"):
            one.add_argument("--branch", metavar="B", help="which branch (default: the current one)")
        if name in ("restore", "fork"):
            one.add_argument("snapshot", metavar="SNAPSHOT")
        if name == "cleanup":
            one.add_argument(
                "--force",
                action="store_true",
                help="remove its record even if what it has cannot be removed, for example without its daemon",
            )
        if name == "snapshot":
            one.add_argument("--park", action="store_true", help="end the branch afterwards")
            one.add_argument("--id", metavar="ID", help="the id of the snapshot (default: a new one)")
        if name == "fork":
            one.add_argument("-n", type=int, default=1, help="how many branches")
            one.add_argument("--id", action="append", metavar="B", help="the id of a branch; may be repeated")
        if name == "exec":
            one.add_argument("--timeout", type=float, metavar="S")
            one.add_argument(
                "command", nargs="*", metavar="COMMAND", help="after --; a single word is a shell line"
            )
    return parser


def _add_method(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--method",
        default="docker",
        metavar="M",
        help="waypoint, docker, podman, criu, hybrid, gvisor, microvm, firecracker, memory; with _attach to take over",
    )
    add_method_options(parser)


if __name__ == "__main__":
    sys.exit(main())
