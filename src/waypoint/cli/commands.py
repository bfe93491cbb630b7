"""Verbs on commands: exec, jobs, wait, output, interrupt."""

import argparse
import signal
import sys
from collections.abc import Callable
from io import FileIO

from waypoint.cli.answer import Answer
from waypoint.cli.exec import (
    EndingInNewline,
    begin_check,
    command_text,
    print_limits,
    refuse_bad_syntax,
    write_output,
)
from waypoint.cli.failure import limits_document
from waypoint.cli.target import find_branch
from waypoint.errors import UsageError
from waypoint.names import MAIN
from waypoint.session.commands.exec import CommandResult
from waypoint.session.commands.jobs import Job
from waypoint.session.session import Branch
from waypoint.session.waypoint import Waypoint
from waypoint.shell.protocol import JobStatus

__all__ = ["exec_", "interrupt", "jobs", "output", "parse_env", "wait"]


def exec_(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    """Run a command, with any options; waypoint.cli.exec handles the plain form."""
    if not options.command:
        raise UsageError("no command", hint="waypoint exec SESSION -- COMMAND")
    branch = find_branch(waypoint, options.target)
    if not options.isolated:
        for name in ("cwd", "env", "user", "stdin"):
            if getattr(options, name):
                raise UsageError(
                    f"--{name} needs --isolated", hint="without it, set this in the command itself"
                )
    elif options.terminal:
        raise UsageError("--isolated cannot be combined with --terminal", hint="leave out one of the two")
    if options.detach:
        for name in ("timeout", "output_limit", "stdin"):
            if getattr(options, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} cannot be combined with --detach",
                    hint="exec --detach returns at once; waypoint wait --timeout waits for the command",
                )
        return _detach(branch, options)
    result = _run_isolated(branch, options) if options.isolated else _run(branch, options)
    document: dict[str, object] = {"exit_code": result.exit_code, "output": result.output}
    if options.isolated:
        document["errors"] = result.errors
    if result.limits_reached:
        document["limits_reached"] = limits_document(result.limits_reached)
    if not options.json:
        print_limits(result)
    return Answer(
        text="", document={**document, "duration_ms": result.duration_ms}, exit_code=result.exit_code
    )


def _run(branch: Branch, options: argparse.Namespace) -> CommandResult:
    command = command_text(options.command)
    write: Callable[[bytes], None] = write_output
    if options.is_older:
        refuse_bad_syntax(begin_check(command), lambda: branch.session.record.settings.shell)
        write = EndingInNewline()
    try:
        return branch.exec(
            command,
            terminal=options.terminal or MAIN,
            timeout_s=options.timeout,
            wait=options.wait,
            on_output=None if options.json else write,
            output_limit=options.output_limit,
        )
    finally:
        if isinstance(write, EndingInNewline):
            write.end()


def _run_isolated(branch: Branch, options: argparse.Namespace) -> CommandResult:
    return branch.exec_isolated(
        options.command[0] if len(options.command) == 1 else options.command,
        stdin=_input(options),
        cwd=options.cwd,
        env=parse_env(options.env),
        user=options.user,
        timeout_s=options.timeout,
        on_output=None if options.json else write_output,
        on_errors=None if options.json else _write_errors,
        output_limit=options.output_limit,
    )


def _detach(branch: Branch, options: argparse.Namespace) -> Answer:
    if options.isolated:
        words = options.command[0] if len(options.command) == 1 else options.command
        job = branch.start_isolated(words, cwd=options.cwd, env=parse_env(options.env), user=options.user)
    else:
        job = branch.start(
            command_text(options.command), terminal=options.terminal or MAIN, wait=options.wait
        )
    return Answer(
        text=f"Job {job.number} started: waypoint wait {options.target} {job.number}",
        quiet=str(job.number),
        document={"job": job.number},
    )


def jobs(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    found = find_branch(waypoint, options.target).jobs()
    documents = [_job_document(status) for status in found]
    lines = [
        f"  {document['job']} {document['kind']} {document['state']}"
        + (f" exit_code={document['exit_code']}" if status.ended else "")
        + f" output={status.length}"
        for status, document in zip(found, documents, strict=True)
    ]
    return Answer(
        text="\n".join(["Jobs:", *lines] if lines else ["No jobs found"]),
        quiet="\n".join(str(status.job) for status in found),
        document={"jobs": documents},
    )


def wait(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    """Wait for a job and exit with its exit code."""
    ended = _find_job(waypoint, options).wait(options.timeout)
    return Answer(
        text=f"Job {options.job} ended with exit code {ended.exit_code}",
        quiet="",
        document={"job": options.job, "exit_code": ended.exit_code},
        exit_code=ended.exit_code,
    )


def output(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    """Print the output of a job. Offsets count the bytes it wrote; line ends are printed as exec prints them."""
    job = _find_job(waypoint, options)
    if options.follow:
        return _follow(job, options)
    written = job.output(options.offset)
    if not options.json:
        write_output(written.printed)
        _write_errors(written.errors)
    return _output_answer(
        job,
        offset=written.offset,
        next_offset=written.offset + len(written.output),
        output=written.printed,
        errors=written.errors,
    )


def _follow(job: Job, options: argparse.Namespace) -> Answer:
    text, errors = list[bytes](), list[bytes]()
    if options.json:
        job.follow(text.append, errors.append, offset=options.offset)
    else:
        job.follow(write_output, _write_errors, offset=options.offset)
    return _output_answer(
        job,
        offset=options.offset,
        next_offset=job.status().length,
        output=b"".join(text),
        errors=b"".join(errors),
    )


def _output_answer(job: Job, *, offset: int, next_offset: int, output: bytes, errors: bytes) -> Answer:
    return Answer(
        text="",
        document={
            "job": job.number,
            "offset": offset,
            "next_offset": next_offset,
            "output": output.decode(errors="replace"),
            "errors": errors.decode(errors="replace"),
        },
    )


def interrupt(waypoint: Waypoint, options: argparse.Namespace) -> Answer:
    if options.job is None:
        find_branch(waypoint, options.target).interrupt(terminal=options.terminal)
    else:
        _find_job(waypoint, options).signal(signal.SIGINT)
    return Answer(text="", document={"interrupted": True})


def parse_env(pairs: list[str] | None) -> dict[str, str]:
    env = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"{pair!r} is not NAME=VALUE", hint="--env NAME=VALUE")
        env[name] = value
    return env


def _find_job(waypoint: Waypoint, options: argparse.Namespace) -> Job:
    return find_branch(waypoint, options.target).job(options.job)


def _job_document(status: JobStatus) -> dict[str, object]:
    return {
        "job": status.job,
        "kind": f"terminal={status.terminal}" if status.terminal else "isolated",
        "terminal": status.terminal or None,
        "state": "ended" if status.ended else "running",
        "exit_code": status.ended.exit_code if status.ended else None,
        "output_bytes": status.length,
        "kept_from": status.kept_from,
        "error_bytes": status.error_length,
        "errors_kept_from": status.error_kept_from,
        "pid": status.pid or None,
    }


def _input(options: argparse.Namespace) -> FileIO | None:
    """The caller's own standard input; if that is a keyboard, only with --stdin."""
    if sys.stdin is None or (sys.stdin.isatty() and not options.stdin):
        return None
    # Unbuffered: a thread that still waits for input when everything else is done must hold no lock.
    return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def _write_errors(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
