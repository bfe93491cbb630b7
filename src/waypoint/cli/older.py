"""The command lines of the original Waypoint and checkpoint-lite, translated into the current ones.

There are three generations: A (checkpoint-lite, and waypoint 0.6), B (one published walk-through) and C
(waypoint 0.7). Most of their words are still in use. This module has the others: what they mean in current words,
and what they print. ``FORMS`` lists them for people; a table of docs/cli.md is made from it. The plain ``exec`` of
generation C is translated here too, so this module imports next to nothing
(docs/adr/0003-command-line-starts-fast.md).
"""

from __future__ import annotations

from waypoint.config import CHECKPOINT_LITE, WAYPOINT
from waypoint.errors import UsageError
from waypoint.names import MAIN

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from typing import Any

    Reword = Callable[[Mapping[str, Any], str], str]

__all__ = ["FORMS", "OLDER_OPERANDS", "Form", "Translation", "UnknownCommand", "translate", "translate_exec"]

SKIPPED_SAVING = "Skipping memory checkpoint as per user request"
SKIPPED_RESTORING = "Skipping memory restore as per user request"
NO_PID = "-2"  # what the first StateFork passes when it has no PID
FILES_ONLY = "-1"

_COMMON_VALUE = frozenset(("--state-dir",))
_EXEC_VALUE = _COMMON_VALUE | {"--timeout", "--terminal", "--output-limit", "--cwd", "--env", "--user"}
_EXEC_PLAIN = frozenset(
    "--isolated --detach --no-wait --stdin -i --json --quiet -q --timings --verbose".split()
)


class Form:
    """An older command line, word for word, and the generation that it is from."""

    __slots__ = ("generation", "program", "words")

    def __init__(self, generation: str, words: str, program: str = WAYPOINT) -> None:
        self.generation = generation
        self.program = program
        self.words = tuple(words.split())


FORMS = (
    Form("A", "exec S COMMAND WORD"),
    Form("A", "S COMMAND WORD"),
    Form("A", "create S NAME"),
    Form("A", "create S NAME -2"),
    Form("A", "create S NAME -1"),
    Form("A", "create S NAME 4711"),
    Form("A", "init DIR", CHECKPOINT_LITE),
    Form("A", "-v"),
    Form("A", "restore S --branch B NAME"),
    Form("C", "exec S FORK -- LINE"),
    Form("C", "fork-exec S FORK LINE"),
    Form("C", "checkpoint S NAME"),
    Form("C", "snapshot S FORK NAME"),
    Form("C", "snapshot S FORK NAME --park"),
    Form("C", "destroy S FORK"),
    Form("C", "cp S HOST FORK:/PATH"),
    Form("C", "cp S FORK:/PATH HOST"),
)


# For completion: the operands of the older forms, where the verb or the operand is not a current one.
OLDER_OPERANDS = {
    "exec": ("", "FORK"),
    "fork-exec": ("SESSION", "FORK"),
    "create": ("SESSION",),
    "checkpoint": ("SESSION",),
    "snapshot": ("", "FORK"),
    "destroy": ("", "FORK"),
    "cp": ("", "FORK:/", "FORK:/"),
}


class UnknownCommand(UsageError):
    """The first word is neither a verb nor a session."""


class Translation:
    """A command line in current words. ``is_older``: print the answer and errors as the originals do; ``reword``
    gives the text of the answer."""

    __slots__ = ("is_older", "reword", "words")

    def __init__(self, words: Sequence[str], *, is_older: bool = True, reword: Reword | None = None) -> None:
        self.words = list(words)
        self.is_older = is_older
        self.reword = reword


def translate(
    words: Sequence[str],
    *,
    program: str = WAYPOINT,
    verbs: Container[str],
    is_session: Callable[[str], bool],
) -> Translation:
    """A command line of any generation in current words. Raises UsageError where the originals refuse it."""
    before, rest = _split_at_verb(words)
    is_lite = program == CHECKPOINT_LITE
    if rest[:1] in (["-v"], ["--version"]):
        rest = ["version", *rest[1:]]
    if rest and not rest[0].startswith("-") and rest[0] not in verbs and rest[0] not in _VERBS:
        if is_session(rest[0]):
            rest = ["exec", *rest]  # a published example leaves out the verb
        elif is_lite:
            raise UnknownCommand(f"Unknown command: {rest[0]}")
    given, rest = rest, _without_branch(rest)
    translated = _VERBS[rest[0]](rest) if rest and rest[0] in _VERBS else None
    if translated is None and is_lite and rest and rest[0] in _LITE_VERBS:
        translated = _LITE_VERBS[rest[0]](rest)
    if translated is None:
        translated = Translation(rest, is_older=is_lite or rest is not given)
    translated.words[:0] = before
    return translated


def translate_exec(words: Sequence[str]) -> Translation | None:
    """An exec of the generations A and C in current words; None for everything else."""
    before, rest = _split_at_verb(words)
    if rest[:1] not in (["exec"], ["fork-exec"]):
        return None
    rest = _without_branch(rest)
    translated = _VERBS[rest[0]](rest)
    if translated is not None:
        translated.words[:0] = before
    return translated


def _split_at_verb(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before the verb, and the rest."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-v", "--version"):
        at += 2 if words[at] in _COMMON_VALUE else 1
    return list(words[:at]), list(words[at:])


def _without_branch(words: list[str]) -> list[str]:
    """``VERB S --branch B …``, of a version between A and C that was never released, is ``VERB S:B …``."""
    if words[:1] not in (["exec"], ["create"], ["restore"]) or words[2:3] != ["--branch"] or len(words) < 4:
        return words
    branch = MAIN if words[3] == "init_branch" else words[3]
    return [words[0], f"{words[1]}:{branch}", *words[4:]]


# -- verbs


def _exec(words: Sequence[str]) -> Translation | None:
    """``exec S WORDS…`` is a line of shell text; ``exec S FORK -- LINE`` says in which fork."""
    options, at = _exec_options(words, 1)
    session = _word(words, at)
    more, at = _exec_options(words, at + 1)
    first = _word(words, at)
    if at >= len(words) or session.startswith("-") or first.startswith("-"):
        return None
    later, after = _exec_options(words, at + 1)
    if _word(words, after) == "--":
        return _run_in_fork(session, first, [*options, *more, *later], words[after + 1 :])
    return Translation(["exec", session, *options, *more, "--", " ".join(words[at:])])


def _fork_exec(words: Sequence[str]) -> Translation | None:
    options, at = _exec_options(words, 1)
    session, fork = _word(words, at), _word(words, at + 1)
    more, at = _exec_options(words, at + 2)
    line = words[at + 1 :] if _word(words, at) == "--" else words[at:]
    if not session or not fork:
        raise UsageError("fork-exec needs a session, a fork and a line: fork-exec S FORK 'LINE'")
    return _run_in_fork(session, fork, [*options, *more], line)


def _run_in_fork(session: str, fork: str, options: Sequence[str], line: Sequence[str]) -> Translation:
    if len(line) != 1:
        raise UsageError(
            f"expected one command line after --, got {len(line)} words",
            hint=f"quote it: exec {session} {fork} -- '{' '.join(line) or 'LINE'}'",
        )
    return Translation(["exec", f"{session}:{fork}", *options, "--", line[0]])


def _create(words: Sequence[str]) -> Translation:
    """``create S NAME [PID]``: -1 means files only, -2 no PID."""
    operands, options = _split(words[1:])
    if len(operands) not in (2, 3):
        raise UsageError(f"{words[0]} needs a session and a name: {words[0]} S NAME [PID]")
    session, name, *pids = operands
    target = ["snapshot", session, name]
    pid = pids[0] if pids else NO_PID
    if pid == NO_PID:
        return Translation([*target, *options])
    if pid == FILES_ONLY:
        return Translation(
            [*target, "--files-only", *options], reword=lambda _, text: f"{SKIPPED_SAVING}\n{text}"
        )
    if not (pid.isascii() and pid.isdigit()):
        raise UsageError(f"invalid PID {pid!r}", hint="the number of a process, -1 for files only")
    return Translation([*target, "--pid", pid, *options])


def _snapshot(words: Sequence[str]) -> Translation | None:
    """``snapshot S FORK NAME [--park]``; with two operands it is a current form, and generation B's."""
    operands, options = _split(words[1:], with_value=_COMMON_VALUE | {"--pid"})
    if len(operands) != 3:
        return None
    session, fork, name = operands
    done = "parked" if "--park" in options else "snapshotted"
    return Translation(
        ["snapshot", f"{session}:{fork}", name, *options],
        reword=lambda document, _: f"Fork '{fork}' {done} as checkpoint '{document['checkpoint']}'",
    )


def _destroy(words: Sequence[str]) -> Translation | None:
    operands, options = _split(words[1:])
    if len(operands) != 2:
        return None
    session, fork = operands
    return Translation(
        ["destroy", f"{session}:{fork}", *options],
        reword=lambda _document, _: f"Fork '{fork}' destroyed successfully",
    )


def _cp(words: Sequence[str]) -> Translation | None:
    """``cp S SRC DST`` with ``FORK:/PATH`` on one side is understood by the current cp; only the errors differ."""
    operands, _ = _split(words[1:])
    return Translation(words) if len(operands) == 3 else None


_VERBS: dict[str, Callable[[Sequence[str]], Translation | None]] = {
    "exec": _exec,
    "fork-exec": _fork_exec,
    "create": _create,
    "checkpoint": _create,
    "snapshot": _snapshot,
    "destroy": _destroy,
    "cp": _cp,
}


# -- current verbs to which checkpoint-lite answers in its own words


def _lite_init(words: Sequence[str]) -> Translation:
    has_work_dir = any(word == "--work-dir" or word.startswith("--work-dir=") for word in words)
    # Last, so that no word after it is taken for its PATH.
    return Translation(words if has_work_dir else [*words, "--work-dir"])


def _lite_list(words: Sequence[str]) -> Translation:
    def reword(document: Mapping[str, Any], _text: str) -> str:
        if "sessions" in document:
            ids = [entry["session_id"] for entry in document["sessions"]]
            return _listed("Available sessions:", "No sessions found", ids)
        ids = [entry["id"] for entry in document["checkpoints"]]
        return _listed("Available checkpoints:", "No checkpoints found", ids)

    return Translation(words, reword=reword)


def _lite_restore(words: Sequence[str]) -> Translation:
    def reword(document: Mapping[str, Any], text: str) -> str:
        if document["kind"] != "files":
            return text
        return f"{SKIPPED_RESTORING}\nCheckpoint '{document['checkpoint']}' restored, new PID: -1"

    return Translation(words, reword=reword)


def _lite_version(words: Sequence[str]) -> Translation:
    return Translation(words, reword=lambda document, _: f"{CHECKPOINT_LITE} version v{document['version']}")


_LITE_VERBS = {"init": _lite_init, "list": _lite_list, "restore": _lite_restore, "version": _lite_version}


def _listed(title: str, none: str, names: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {name}" for name in names)] if names else [none])


# -- words


def _word(words: Sequence[str], at: int) -> str:
    return words[at] if at < len(words) else ""


def _exec_options(words: Sequence[str], at: int) -> tuple[list[str], int]:
    """The current options of exec from ``at`` on, and the index after them."""
    begin = at
    while at < len(words):
        name, equals, _ = words[at].partition("=")
        if words[at] in _EXEC_PLAIN or (name in _EXEC_VALUE and equals):
            at += 1
        elif name in _EXEC_VALUE:
            at += 2
        else:
            break
    return list(words[begin:at]), at


def _split(words: Sequence[str], with_value: Container[str] = _COMMON_VALUE) -> tuple[list[str], list[str]]:
    """Operands and options; a negative number is an operand, and so is a single dash."""
    operands: list[str] = []
    options: list[str] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word == "-" or word[1:].isdigit():
            operands.append(word)
        else:
            options.append(word)
            if word in with_value:
                options += [value for value in [next(left, None)] if value is not None]
    return operands, options
