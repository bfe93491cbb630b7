"""docs/backends.md lists what the backends claim."""

import argparse
from pathlib import Path

from statefork.cli.verbs import backends

PAGE = Path(__file__).parents[2] / "docs/backends.md"


def test_the_table_of_the_page_matches_the_code() -> None:
    assert backends(argparse.Namespace(markdown=True)).text in PAGE.read_text()
