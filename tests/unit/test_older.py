"""The words of the originals, word for word, and our words for them."""

from collections.abc import Sequence

import pytest

from waypoint.cli.exec import parse_exec
from waypoint.cli.older import FORMS, Form, Translation, UnknownCommand, translate, translate_exec
from waypoint.cli.parser import VERBS
from waypoint.config import CHECKPOINT_LITE, WAYPOINT
from waypoint.errors import UsageError


def translated(line: str | Sequence[str], program: str = WAYPOINT) -> Translation:
    """Translate the line on a host with one session S."""
    words = line.split() if isinstance(line, str) else line
    return translate(words, program=program, verbs=VERBS, is_session=lambda word: word in ("S", "S:f"))


@pytest.mark.parametrize(
    ("older", "ours"),
    [
        # A
        ("create S c", "snapshot S c"),
        ("create S c -2", "snapshot S c"),
        ("create S c -1", "snapshot S c --files-only"),
        ("create S c 4711", "snapshot S c --pid 4711"),
        ("create --state-dir /d S c --quiet", "snapshot S c --state-dir /d --quiet"),
        ("--json create S c", "--json snapshot S c"),
        ("-v", "version"),
        ("create S --branch b c", "snapshot S:b c"),
        ("create S --branch init_branch c -1", "snapshot S:main c --files-only"),
        # C
        ("checkpoint S c", "snapshot S c"),
        ("snapshot S f c", "snapshot S:f c"),
        ("snapshot S f c --park", "snapshot S:f c --park"),
        ("snapshot --park S f c", "snapshot S:f c --park"),
        ("destroy S f", "destroy S:f"),
        ("cp S ./host f:/abs", "cp S ./host f:/abs"),
        ("cp S - f:/abs", "cp S - f:/abs"),
        # between A and C
        ("restore S --branch b c", "restore S:b c"),
    ],
)
def test_the_words_of_the_originals_are_translated_into_ours(older: str, ours: str) -> None:
    translation = translated(older)
    assert " ".join(translation.words) == ours
    assert translation.is_older == (older != "-v")


@pytest.mark.parametrize(
    "line",
    [
        "snapshot S c",  # B: in the same words
        "snapshot S:f c",
        "snapshot S",
        "snapshot --state-dir /d S c",
        "restore S c",
        "destroy S:f",
        "fork S c --id f --n 1",
        "init /d --quiet --shell",
        "build /d --quiet",
        "list",
        "list S --json",
        "cleanup S --force",
        "suspend S",
        "info S c",
        "cp ./host S:/abs",
        "exec S -- true",
        "exec S:f --timeout 5 -- create S c",
        "exec S --isolated -- true",
        "exec S --nosuch -- true",
        "exec S --help",
        "exec --help",
        "nosuch S c",
        "--help",
        "",
    ],
)
def test_our_own_words_are_not_changed(line: str) -> None:
    translation = translated(line)
    assert (translation.words, translation.is_older, translation.reword) == (line.split(), False, None)


@pytest.mark.parametrize(
    ("older", "target", "command", "options"),
    [
        # A: the words are joined with blanks, whatever they look like
        (["exec", "S", "cd", "/app"], "S", "cd /app", []),
        (["exec", "S", "ls", "-la", "--all"], "S", "ls -la --all", []),
        (["exec", "S", "echo 'a b' > /tmp/x && cat /tmp/x"], "S", "echo 'a b' > /tmp/x && cat /tmp/x", []),
        (["exec", "S", "echo", "$HOME", "|", "wc"], "S", "echo $HOME | wc", []),
        (["exec", "S", "git", "log", "--", "file"], "S", "git log -- file", []),
        (
            ["exec", "S", "--timeout", "5", "make", "--timeout", "7"],
            "S",
            "make --timeout 7",
            ["--timeout", "5"],
        ),
        (["exec", "S", "fork-exec", "S"], "S", "fork-exec S", []),
        (["exec", "S", "", "ls"], "S", " ls", []),
        (["S", "cd", "/app"], "S", "cd /app", []),
        (["exec", "S", "--branch", "b", "ls", "-l"], "S:b", "ls -l", []),
        (["S:f", "ls", "-l"], "S:f", "ls -l", []),
        # C: one line, in the fork
        (["exec", "S", "f", "--", "a; b 'c d'"], "S:f", "a; b 'c d'", []),
        (["exec", "S", "f", "--timeout=3", "--", "x"], "S:f", "x", ["--timeout=3"]),
        (["exec", "S", "f", "--", "--"], "S:f", "--", []),
        (["fork-exec", "S", "f", "a -- b"], "S:f", "a -- b", []),
        (["fork-exec", "S", "f", "--", "a"], "S:f", "a", []),
    ],
)
def test_an_older_exec_becomes_one_line_for_the_shell(
    older: list[str], target: str, command: str, options: list[str]
) -> None:
    translation = translated(older)
    assert translation.words == ["exec", target, *options, "--", command]
    assert translation.is_older
    if older[0] in ("exec", "fork-exec"):
        light = translate_exec(older)
        assert light is not None
        assert light.words == translation.words
        request = parse_exec(older)  # without the full grammar
        assert request is not None
        assert (request.target, request.command, request.is_older) == (target, command, True)


def test_our_plain_exec_is_not_older() -> None:
    request = parse_exec(["exec", "S", "--", "true"])
    assert request is not None
    assert not request.is_older
    lite = parse_exec(["exec", "S", "--", "true"], CHECKPOINT_LITE)
    assert lite is not None
    assert (lite.is_older, lite.program) == (True, CHECKPOINT_LITE)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("exec S f -- echo two words", "expected one command line"),
        ("exec S f --", "expected one command line"),
        ("fork-exec S f echo two", "expected one command line"),
        ("fork-exec S", "needs a session, a fork and a line"),
        ("create S", "needs a session and a name"),
        ("create S c 1 2", "needs a session and a name"),
        ("create S c soon", "invalid PID 'soon'"),
        ("create S c -3", "invalid PID '-3'"),
    ],
)
def test_what_the_originals_refuse_is_refused(line: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        translated(line)
    assert parse_exec(line.split()) is None


def test_reserved_names_are_passed_on_to_the_code_that_refuses_them() -> None:
    assert translated(["create", "S", ""]).words == ["snapshot", "S", ""]
    assert translated("create S current").words == ["snapshot", "S", "current"]


@pytest.mark.parametrize(
    ("line", "document", "text", "said"),
    [
        ("create S c -1", {}, "ours", "Skipping memory checkpoint as per user request\nours"),
        ("snapshot S f c", {"checkpoint": "c"}, "", "Fork 'f' snapshotted as checkpoint 'c'"),
        ("snapshot S f c --park", {"checkpoint": "c"}, "", "Fork 'f' parked as checkpoint 'c'"),
        ("destroy S f", {}, "", "Fork 'f' destroyed successfully"),
    ],
)
def test_the_answer_is_in_the_words_of_the_originals(
    line: str, document: dict[str, object], text: str, said: str
) -> None:
    reword = translated(line).reword
    assert reword is not None
    assert reword(document, text) == said


@pytest.mark.parametrize(
    ("line", "ours", "document", "said"),
    [
        ("init DIR --quiet", "init DIR --quiet --work-dir", None, None),
        ("init DIR --work-dir=/w", "init DIR --work-dir=/w", None, None),
        ("list", "list", {"sessions": []}, "No sessions found"),
        ("list", "list", {"sessions": [{"session_id": "a"}]}, "Available sessions:\n  a"),
        ("list S", "list S", {"checkpoints": []}, "No checkpoints found"),
        ("list S", "list S", {"checkpoints": [{"id": "c"}]}, "Available checkpoints:\n  c"),
        ("version", "version", {"version": "1"}, "checkpoint-lite version v1"),
        ("--version", "version", {"version": "1"}, "checkpoint-lite version v1"),
        ("restore S c", "restore S c", {"kind": "full", "checkpoint": "c"}, ""),
        (
            "restore S c",
            "restore S c",
            {"kind": "files", "checkpoint": "c"},
            "Skipping memory restore as per user request\nCheckpoint 'c' restored, new PID: -1",
        ),
        ("S cd /app", "exec S -- cd /app", None, None),
    ],
)
def test_checkpoint_lite_has_its_own_words_and_answers(
    line: str, ours: str, document: dict[str, object] | None, said: str | None
) -> None:
    translation = translated(line, CHECKPOINT_LITE)
    assert " ".join(translation.words) == ours
    assert translation.is_older
    if document is not None:
        assert translation.reword is not None
        assert translation.reword(document, "") == said


def test_each_program_reports_an_unknown_word_in_its_own_way() -> None:
    with pytest.raises(UnknownCommand, match=r"^Unknown command: nosuch$"):
        translated("nosuch S", CHECKPOINT_LITE)
    assert translated("nosuch S").words == ["nosuch", "S"]  # our grammar reports the known verbs


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(form.words))
def test_every_form_of_the_list_is_older(form: Form) -> None:
    assert translated(form.words, form.program).words != list(form.words) or form.words[0] == "cp"
