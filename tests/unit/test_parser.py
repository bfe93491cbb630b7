"""The grammar of the command line: every verb is where its table says."""

import argparse

import pytest

from waypoint.cli.parser import VERBS, grammar, parse


def verbs_of(parser: argparse.ArgumentParser) -> set[str]:
    [choices] = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    return set(choices)


def test_the_grammar_has_exactly_the_verbs_of_the_table() -> None:
    assert verbs_of(grammar()) == VERBS


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_is_found_without_building_the_full_grammar(verb: str) -> None:
    assert verb in verbs_of(grammar("waypoint", verb))


def test_a_mistyped_verb_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["snapshto", "demo"])
    assert "do you mean snapshot?" in capsys.readouterr().err
