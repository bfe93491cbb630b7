"""The tables of docs/cli.md, made from the code: ``python -m waypoint.cli.reference docs/cli.md`` writes them."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from waypoint.cli.older import FORMS, Form, translate
from waypoint.cli.parser import VERBS, grammar
from waypoint.config import KEYS, WAYPOINT, Key

__all__ = ["with_tables"]

_COMMON = frozenset("--help --state-dir --json --quiet --timings --verbose".split())


def with_tables(page: str) -> str:
    """The page, with each table between its two marks replaced by one made from the code."""
    for name, table in (("verbs", verbs_table()), ("older", older_table()), ("keys", keys_table())):
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        page = f"{before}{begin}{table}\n{end}{after}"
    return page


def verbs_table() -> str:
    """Every verb with its operands, its options, and what it does."""
    lines = ["| verb | options | what it does |", "|---|---|---|"]
    for name, parser, about in _verbs(grammar()):
        words = " ".join([name, *_operands(parser)])
        options = " ".join(f"`{option}`" for option in _options(parser))
        lines.append(f"| {_code(words)} | {_escaped(options)} | {_escaped(about)} |")
    return "\n".join(lines)


def older_table() -> str:
    """The older forms that are no longer current, and what they mean in current words."""
    lines = ["| generation | older form | is |", "|---|---|---|"]
    for form in FORMS:
        translation = translate(
            form.words, program=form.program, verbs=VERBS, is_session=lambda word: word == "S"
        )
        ours = _shown(form, translation.words)
        lines.append(
            f"| {form.generation} | {_code(f'{form.program} {_pid(form.words)}')} | {_code(f'{WAYPOINT} {ours}')} |"
        )
    return "\n".join(lines)


def keys_table() -> str:
    """Every key of a configuration file."""
    lines = ["| key | variable | value | default |", "|---|---|---|---|"]
    for key in KEYS:
        variable = _code(f"WAYPOINT_{key.variable}") if key.variable else "-"
        lines.append(f"| {_code(key.name)} | {variable} | {_kind(key)} | {_default(key)} |")
    return "\n".join(lines)


def _kind(key: Key) -> str:
    return {"path": "a path", "flag": "true or false", "list": "a list of paths"}[key.kind]


def _default(key: Key) -> str:
    if key.kind == "path":
        return _code(str(key.default)) if key.default else "-"
    return "false" if key.kind == "flag" else "no additional paths"


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        about = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, below in action.choices.items():
            nested = [(f"{name} {verb}", *rest) for verb, *rest in _verbs(below)]
            yield from nested or [(name, below, about[name])]  # type: ignore[misc]


def _operands(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.option_strings or action.help == argparse.SUPPRESS:
            continue
        shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if action.choices is not None and action.metavar is None:
            shown = "|".join(map(str, action.choices))
        yield {"?": f"[{shown}]", "*": f"-- {shown}…", "+": f"{shown}…"}.get(str(action.nargs), shown)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names or names[0] in _COMMON:
            continue
        value = action.metavar if isinstance(action.metavar, str) else ""
        if action.choices is not None:
            value = "|".join(map(str, action.choices))
        if action.nargs == "?":
            value = value if value.startswith("=") else f"[{value}]"
        yield names[0] + (value if value.startswith("=") else f" {value}" if value else "")


def _shown(form: Form, words: list[str]) -> str:
    """A current command line as it is typed: a word with blanks is quoted."""
    return _pid(f"'{word}'" if " " in word or word == "LINE" else word for word in words)


def _pid(words: Iterable[str]) -> str:
    return " ".join("PID" if word == "4711" else word for word in words)


def _code(text: str) -> str:
    return f"`{_escaped(text)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text()))
