"""The verbs that run commands and manage jobs."""

import argparse

from waypoint.cli.grammar.options import add_job, add_target, add_terminal
from waypoint.cli.grammar.verbs import Verb, Verbs

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    exec_ = verbs.add(
        Verb("exec", "commands", "exec_"),
        "run a command in a branch's shell, or outside it, and exit with the command's exit code",
        "waypoint exec demo -- 'cd src && export MODE=debug'",
        "waypoint exec demo:fork-1 --timeout 60 -- make test",
        "waypoint exec demo --isolated --cwd /srv -- sort <data >sorted",
        "job=$(waypoint exec demo --detach --quiet -- make world)",
    )
    add_target(exec_)
    exec_.add_argument(
        "--isolated",
        action="store_true",
        help="run it as a separate process, not in the shell: output and errors apart, input from here",
    )
    exec_.add_argument(
        "--detach", action="store_true", help="do not wait for the command; print its job number"
    )
    add_terminal(exec_, default=None)
    exec_.add_argument(
        "--timeout", type=float, metavar="S", help="end the command after S seconds, with exit code 124"
    )
    exec_.add_argument(
        "--output-limit",
        type=_byte_count,
        metavar="N",
        help="end the command when it writes more than N bytes (K, M), with exit code 125",
    )
    exec_.add_argument("--cwd", metavar="DIR", help="isolated: where it starts")
    exec_.add_argument("--env", action="append", metavar="K=V", help="isolated: a variable; may be repeated")
    exec_.add_argument("--user", metavar="U", help="isolated: NAME, UID or UID:GID of the branch")
    exec_.add_argument(
        "--stdin", "-i", action="store_true", help="isolated: pass standard input on even if it is a keyboard"
    )
    exec_.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help="after --: one word is shell text, several are a command and its arguments",
    )
    jobs = verbs.add(
        Verb("jobs", "commands", "jobs"),
        "list the commands that a branch keeps, running and ended",
    )
    add_target(jobs, waits=False)
    wait = verbs.add(
        Verb("wait", "commands", "wait"),
        "wait for a job and exit with its exit code; 124 if it still runs",
        "waypoint wait demo 3 --timeout 60",
    )
    add_job(wait)
    wait.add_argument(
        "--timeout", type=float, metavar="S", help="wait S seconds at most; the job keeps running"
    )
    output = verbs.add(
        Verb("output", "commands", "output"),
        "print what a job has written so far",
        "waypoint output demo 3 --from 4096",
        "waypoint output demo 3 --follow",
    )
    add_job(output)
    output.add_argument(
        "--from", dest="offset", type=int, default=0, metavar="OFFSET", help="skip that many bytes"
    )
    output.add_argument("--follow", action="store_true", help="continue until the job has ended")
    interrupt = verbs.add(
        Verb("interrupt", "commands", "interrupt"),
        "interrupt a job, or what runs in a terminal's foreground, as Ctrl-C does",
        "waypoint interrupt demo",
    )
    add_target(interrupt, waits=False)
    interrupt.add_argument("job", nargs="?", type=int, metavar="JOB")
    add_terminal(interrupt)


def _byte_count(text: str) -> int:
    """``N``, ``NK``, ``NM`` or ``NG``."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes above 0: 500, 10K, 2M")
    return int(number) * unit
