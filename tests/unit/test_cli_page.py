"""docs/cli.md says what the code does."""

from pathlib import Path

from waypoint.cli.reference import with_tables

PAGE = Path(__file__).parents[2] / "docs/cli.md"


def test_the_tables_of_the_page_match_the_code() -> None:
    page = PAGE.read_text()
    assert page.count("\n|") > 60
    assert with_tables(page) == page, "put the tables there: python -m waypoint.cli.reference docs/cli.md"
